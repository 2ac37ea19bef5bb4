"""Task 2: two linear layers, split over P ranks (Shoeybi et al. 2019, Sec. 3).

The layers compute y = relu(x w1 + b1) w2 + b2. Split the first by columns and the second by rows: each
rank then computes some hidden units from start to end, and the ranks exchange one sum in the forward
pass, and one in the backward pass. A layer split in this way needs no other communication.

    x       shape (samples, d)        w1      shape (d, hidden)       b1      shape (hidden,)
    y       shape (samples, out)      w2      shape (hidden, out)     b2      shape (out,)
"""

import numpy as np


def shard(w1, b1, w2, b2, rank, size):
    """One rank's part of the layers.

    Hidden units are split in order, as `np.array_split` does; `size` need not divide their number.

    Returns:
        [w1, b1, w2, b2] with the rank's hidden units only; b2 has no hidden units, and is whole.
    """
    # solution: write shard
    columns = np.array_split(w1, size, axis=1)[rank]
    return [columns, np.array_split(b1, size)[rank], np.array_split(w2, size)[rank], b2]
    # end of solution


def forward(x, part, rank, size, all_reduce):
    """The outputs y, the same on all ranks.

    Args:
        x: the same on all ranks.
        part: what `shard` returned for this rank.
        all_reduce: returns the elementwise sum of all ranks' arrays. Call it once.
    """
    # solution: write forward
    w1, b1, w2, b2 = part
    return all_reduce(np.maximum(x @ w1 + b1, 0) @ w2) + b2
    # end of solution


def backward(x, part, dy, rank, size, all_reduce):
    """The gradients of a loss.

    Args:
        x, part: as for `forward`.
        dy: gradient of the loss with respect to y, the same on all ranks.
        all_reduce: as for `forward`. Call it once.

    Returns:
        The gradient with respect to x, the same on all ranks; and those with respect to the rank's part:
        [w1, b1, w2, b2].
    """
    # solution: write backward
    w1, b1, w2, _ = part
    hidden = np.maximum(x @ w1 + b1, 0)
    inner = (dy @ w2.T) * (hidden > 0)
    return all_reduce(inner @ w1.T), [x.T @ inner, inner.sum(axis=0), hidden.T @ dy, dy.sum(axis=0)]
    # end of solution
