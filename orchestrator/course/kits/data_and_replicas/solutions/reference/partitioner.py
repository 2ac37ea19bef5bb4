"""A random partition."""

from typing import ClassVar

import numpy as np

from shardyard import Indices, Labels, Partitioner


class MyPartitioner(Partitioner):
    """Split a random permutation of the training set into parts of equal size (±1)."""

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        """The parts of a permutation."""
        return np.array_split(rng.permutation(len(labels)), parts)
