"""Does not subtract the largest score, so large scores overflow."""

import numpy as np


def forward(q, k, v, rank, size, send, recv):
    """The outputs for this rank's tokens, and the log of the sum of exp(score)."""
    right, left = (rank + 1) % size, (rank - 1) % size
    total, out = np.zeros(len(q)), np.zeros_like(v)
    for step in range(size):
        source = (rank - step) % size  # the rank that has these keys and values
        scores = q @ k.T / np.sqrt(q.shape[1])
        if source == rank:
            scores[np.triu_indices(len(q), 1)] = -np.inf
        elif source > rank:
            scores[:] = -np.inf
        weights = np.exp(scores)
        total += weights.sum(axis=1)
        out += weights @ v
        if step < size - 1:
            send(right, np.stack([k, v]))
            k, v = recv(left)
    return out / total[:, None], np.log(total)
