"""Aggregations: how the weights or gradients of ranks become one vector, one file each."""
