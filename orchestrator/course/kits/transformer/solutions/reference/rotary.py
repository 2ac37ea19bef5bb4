"""Rotary positions of the tokens of a rank."""

import numpy as np

BASE = 10_000.0


def rotate(x, length, rank, size):
    """The rotated queries or keys of this rank's tokens."""
    d = x.shape[1]
    positions = np.array_split(np.arange(length), size)[rank]
    angles = positions[:, None] * BASE ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = np.empty_like(x)
    rotated[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
    rotated[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
    return rotated
