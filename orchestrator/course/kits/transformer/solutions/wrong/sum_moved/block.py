"""Sums the gradient of the scale once, but no longer that of x."""

import numpy as np


def backward(x, gamma, w1, w2, dy, all_reduce):
    """The gradients of x, gamma, w1 and w2."""
    h = x * gamma
    units = np.maximum(h @ w1, 0)
    inner = (dy @ w2.T) * (units > 0)
    dh = inner @ w1.T
    dgamma = all_reduce((dh * x).sum(axis=0))
    return [dh * gamma, dgamma, h.T @ inner, units.T @ dy]
