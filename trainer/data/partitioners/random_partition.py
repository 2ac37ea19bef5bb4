"""Random disjoint parts: the textbook way to shard a training set."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class RandomPartition(Partitioner):
    """Split a random permutation into parts of equal size (±1).

    Every sample is on exactly one node. The first `samples mod parts` nodes get one sample more. torch's
    DistributedSampler repeats samples instead, until all parts are equal.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    random_parts: ClassVar[bool] = True
    even_parts: ClassVar[bool] = True

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return np.array_split(rng.permutation(len(labels)), parts)
