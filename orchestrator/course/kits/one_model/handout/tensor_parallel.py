"""Task 2: two linear layers, split over P ranks (Shoeybi et al. 2019, Sec. 3).

The layers compute y = relu(x w1 + b1) w2 + b2. Split the first by columns and the second by rows: each
rank then computes some hidden units from start to end, and the ranks exchange one sum in the forward
pass, and one in the backward pass. A layer split in this way needs no other communication.

    x       shape (samples, d)        w1      shape (d, hidden)       b1      shape (hidden,)
    y       shape (samples, out)      w2      shape (hidden, out)     b2      shape (out,)
"""

from collections.abc import Callable

import numpy as np

Arrays = list[np.ndarray]


def shard(w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray, rank: int, size: int) -> Arrays:
    """One rank's part of the layers.

    Hidden units are split in order, as `np.array_split` does; `size` need not divide their number.

    Returns:
        [w1, b1, w2, b2] with the rank's hidden units only; b2 has no hidden units, and is whole.
    """
    raise NotImplementedError("write shard")


def forward(
    x: np.ndarray, part: Arrays, rank: int, size: int, all_reduce: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The outputs y, the same on all ranks.

    Args:
        x: the same on all ranks.
        part: what `shard` returned for this rank.
        all_reduce: returns the elementwise sum of all ranks' arrays. Call it once.
    """
    raise NotImplementedError("write forward")


def backward(
    x: np.ndarray,
    part: Arrays,
    dy: np.ndarray,
    rank: int,
    size: int,
    all_reduce: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, Arrays]:
    """The gradients of a loss.

    Args:
        x, part: as for `forward`.
        dy: gradient of the loss with respect to y, the same on all ranks.
        all_reduce: as for `forward`. Call it once.

    Returns:
        The gradient with respect to x, the same on all ranks; and those with respect to the rank's part:
        [w1, b1, w2, b2].
    """
    raise NotImplementedError("write backward")
