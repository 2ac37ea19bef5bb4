"""Soak tests: start every topology repeatedly, and count the failures."""
