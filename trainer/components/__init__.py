"""Kinds of components: how what a user brings becomes one of ours, what a spec knows of it, its laws."""
