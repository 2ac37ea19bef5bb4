"""Sums the gradient of the scale over ranks, and not that of the shift."""

import numpy as np

EPSILON = 1e-5  # added to the variance


def backward(x, gamma, w, dy, rank, size, all_reduce):
    """The gradients of x, gamma and beta."""
    dh = np.array_split(all_reduce(dy @ w.T), size)[rank]  # a reduce-scatter

    inverse = 1 / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)
    normal = (x - x.mean(axis=1, keepdims=True)) * inverse
    dnormal = dh * gamma
    along = (dnormal * normal).mean(axis=1, keepdims=True)
    dx = inverse * (dnormal - dnormal.mean(axis=1, keepdims=True) - normal * along)
    return [dx, all_reduce((dh * normal).sum(axis=0)), dh.sum(axis=0)]
