"""Leaves replicated weights out of the norm."""

import numpy as np


def clip(split, replicated, limit, all_reduce):
    """Scale the gradient down to a norm of `limit`."""
    squares = sum(np.sum(each**2) for each in split)
    norm = np.sqrt(all_reduce(squares))
    scale = limit / max(norm, limit)
    return [[scale * each for each in split], [scale * each for each in replicated]]
