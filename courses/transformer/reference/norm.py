"""Task 5, find the bug: a LayerNorm under sequence parallelism (Korthikanti et al. 2022, Sec. 4.2.2).

Each rank normalises its own tokens, split as `np.array_split` does. Then the ranks gather all tokens, and
each rank computes some columns of the next layer: y = gathered(gamma · normalised(x) + beta) w.
"""

import numpy as np

EPSILON = 1e-5  # added to the variance


def backward(x, gamma, w, dy, rank, size, all_reduce):
    """The gradients of a loss.

    Args:
        x: this rank's tokens before the norm, shape (its tokens, d).
        gamma: the scale, shape (d,). It and the shift beta are the same on all ranks.
        w: this rank's columns, shape (d, its columns).
        dy: the gradient with respect to y, shape (all tokens, its columns).
        rank, size: this rank, and the number of ranks.
        all_reduce: returns the elementwise sum of all ranks' arrays.

    Returns:
        [dx, dgamma, dbeta]: the gradients with respect to this rank's x, to gamma and to beta.
    """
    dh = np.array_split(all_reduce(dy @ w.T), size)[rank]  # a reduce-scatter

    inverse = 1 / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)
    normal = (x - x.mean(axis=1, keepdims=True)) * inverse
    dnormal = dh * gamma
    along = (dnormal * normal).mean(axis=1, keepdims=True)
    dx = inverse * (dnormal - dnormal.mean(axis=1, keepdims=True) - normal * along)
    return [dx, all_reduce((dh * normal).sum(axis=0)), all_reduce(dh.sum(axis=0))]
