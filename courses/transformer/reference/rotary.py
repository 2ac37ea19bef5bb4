"""Task 6, find the bug: rotary positions (Su et al. 2021) of tokens that are divided over ranks.

The token at position p has d / 2 pairs of values. Pair i is rotated by the angle p · BASE^(-2i/d).
"""

import numpy as np

BASE = 10_000.0


def rotate(x, length, rank, size):
    """The rotated queries or keys of this rank's tokens.

    Args:
        x: shape (tokens, d), d even; pair i is (x[:, 2i], x[:, 2i + 1]). The tokens of the sample are
            split in order, as `np.array_split` does.
        length: number of tokens of the whole sample, `size` or more.
        rank, size: this rank, and the number of ranks. Rank 0 has the token at position 0.

    Returns:
        Shape (tokens, d).
    """
    d = x.shape[1]
    positions = np.array_split(np.arange(length), size)[rank]
    angles = positions[:, None] * BASE ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = np.empty_like(x)
    rotated[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
    rotated[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
    return rotated
