"""Sends gradients home in the wrong direction, which is the right one with two ranks."""

import numpy as np


def backward(q, k, v, out, log_sum, dout, rank, size, send, recv):
    """The gradients with respect to this rank's tokens."""
    right, left = (rank + 1) % size, (rank - 1) % size
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    delta = (dout * out).sum(axis=1, keepdims=True)
    for step in range(size):
        source = (rank - step) % size  # the rank that has these keys and values
        scores = q @ k.T / np.sqrt(q.shape[1])
        if source == rank:
            scores[np.triu_indices(len(q), 1)] = -np.inf
        elif source > rank:
            scores[:] = -np.inf
        weights = np.exp(scores - log_sum[:, None])
        dscores = weights * (dout @ v.T - delta) / np.sqrt(q.shape[1])
        dq += dscores @ k
        dk += dscores.T @ q
        dv += weights.T @ dout
        if step < size - 1:
            send(right, np.stack([k, v, dk, dv]))
            k, v, dk, dv = recv(left)
    if size > 1:
        send(left, np.stack([dk, dv]))
        dk, dv = recv(right)
    return [dq, dk, dv]
