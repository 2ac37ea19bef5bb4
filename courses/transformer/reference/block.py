"""Task 7, find the bug: a tensor-parallel block (Shoeybi et al. 2019, Sec. 3), with a scale before it.

The block computes y = relu((x · gamma) w1) w2. Each rank has some hidden units: columns of w1, and the same
rows of w2. The ranks sum what they compute of y.
"""

import numpy as np


def backward(x, gamma, w1, w2, dy, all_reduce):
    """The gradients of a loss.

    Args:
        x: shape (tokens, d). gamma: the scale, shape (d,). Both are the same on all ranks.
        w1: this rank's columns, shape (d, its units). w2: this rank's rows, shape (its units, d).
        dy: the gradient with respect to y, shape (tokens, d), the same on all ranks.
        all_reduce: returns the elementwise sum of all ranks' arrays.

    Returns:
        [dx, dgamma, dw1, dw2]: the gradients with respect to x and gamma, and to this rank's w1 and w2.
    """
    h = x * gamma
    units = np.maximum(h @ w1, 0)
    inner = (dy @ w2.T) * (units > 0)
    dh = all_reduce(inner @ w1.T)
    dgamma = (dh * x).sum(axis=0)
    return [dh * gamma, dgamma, h.T @ inner, units.T @ dy]
