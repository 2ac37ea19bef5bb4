"""Sweep files: read, validate and expand them into runs."""
