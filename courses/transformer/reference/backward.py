"""Task 2, find the bug: the backward pass of ring attention.

As in task 1, blocks of keys and values travel around a ring of ranks. Their gradients travel with them, and
each rank adds what its queries contribute.
"""

import numpy as np


def backward(q, k, v, out, log_sum, dout, rank, size, send, recv):
    """The gradients of a loss with respect to this rank's tokens.

    Args:
        q, k, v, rank, size, send, recv: as for `forward` in task 1.
        out, log_sum: what `forward` returned.
        dout: the gradient with respect to `out`, shape (tokens, d).

    Returns:
        [dq, dk, dv]: the gradients with respect to this rank's q, k and v, shape (tokens, d) each.
    """
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
        if size > 1:  # also in the last step: the block returns to its rank
            send(right, np.stack([k, v, dk, dv]))
            k, v, dk, dv = recv(left)
    return [dq, dk, dv]
