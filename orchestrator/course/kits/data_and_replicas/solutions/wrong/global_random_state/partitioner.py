"""Ignores the given generator."""

from typing import ClassVar

import numpy as np

from shardyard import Partitioner


class MyPartitioner(Partitioner):
    """Split a permutation of numpy's global generator."""

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def partition(self, labels, parts, rng):
        """The parts of a permutation."""
        return np.array_split(np.random.permutation(len(labels)), parts)
