"""Strategies, one file each: how ranks train one model together."""
