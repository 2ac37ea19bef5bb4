"""Sweep files: reading, checking and expanding them into runs."""
