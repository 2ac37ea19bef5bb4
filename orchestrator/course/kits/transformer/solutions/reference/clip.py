"""Clips a gradient by the norm of the whole model."""

import numpy as np


def clip(split, replicated, limit, all_reduce):
    """Scale the gradient down to a norm of `limit`."""
    squares = all_reduce(sum(np.sum(each**2) for each in split))
    norm = np.sqrt(squares + sum(np.sum(each**2) for each in replicated))
    scale = limit / max(norm, limit)
    return [[scale * each for each in split], [scale * each for each in replicated]]
