"""Finds out, before a run starts, what a spec must know about users' components."""
