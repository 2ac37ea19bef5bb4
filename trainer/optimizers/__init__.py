"""Optimizers, one file each: how a gradient changes the weights."""
