"""Partitioners, one file each: which samples each rank trains on."""
