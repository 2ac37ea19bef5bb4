"""Optimizers: how a gradient becomes a step, one file each."""
