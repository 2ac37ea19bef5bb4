"""Implementations of the commands; cli.py declares their options."""
