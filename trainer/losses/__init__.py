"""Losses: what training minimises, and which answers count as right."""
