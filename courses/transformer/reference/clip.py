"""Task 4, find the bug: clip a gradient by its norm, in a model whose layers are split over ranks.

Ranks have different parts of the matrices, and equal copies of norms and of some biases.
"""

import numpy as np


def clip(split, replicated, limit, all_reduce):
    """Scale the gradient down to a norm of `limit`, if its norm is larger.

    The norm is that of the gradient of the whole model, in which each weight is present once.

    Args:
        split: gradients of the matrices' parts that this rank has: a list of arrays, of any shapes.
        replicated: gradients of the weights that all ranks have, equal on all ranks: a list of arrays.
        limit: the largest norm, above 0.
        all_reduce: returns the elementwise sum of all ranks' arrays.

    Returns:
        [split, replicated], scaled.
    """
    squares = all_reduce(sum(np.sum(each**2) for each in split))
    norm = np.sqrt(squares + sum(np.sum(each**2) for each in replicated))
    scale = limit / max(norm, limit)
    return [[scale * each for each in split], [scale * each for each in replicated]]
