"""Gradient compressions, one file each."""
