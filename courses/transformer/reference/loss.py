"""Task 3, find the bug: the gradient of data-parallel training with padded samples.

The model is a linear layer with a softmax over classes. Each rank has the tokens of its own samples.
"""

import numpy as np

PADDING = -1  # target of a token that does not count


def gradient(weights, x, targets, size, all_reduce):
    """The gradient of the mean cross-entropy over all tokens that count, of all ranks.

    Args:
        weights: shape (d, classes), the same on all ranks.
        x: this rank's tokens, shape (tokens, d). targets: their classes, or PADDING, shape (tokens,).
        size: number of ranks.
        all_reduce: returns the elementwise sum of all ranks' arrays.

    Returns:
        Shape (d, classes), the same on all ranks.
    """
    counts = targets != PADDING
    logits = x @ weights
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    dlogits = scores / scores.sum(axis=1, keepdims=True)
    dlogits[np.arange(len(x)), targets] -= 1
    own = x.T @ (dlogits * counts[:, None])
    return all_reduce(own) / all_reduce(counts.sum())
