"""Drops the samples that are left after a division without remainder."""

from typing import ClassVar

from shardyard import Partitioner


class MyPartitioner(Partitioner):
    """Split a permutation into parts of exactly equal size."""

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def partition(self, labels, parts, rng):
        """Parts of samples // parts."""
        order, size = rng.permutation(len(labels)), len(labels) // parts
        return [order[part * size : (part + 1) * size] for part in range(parts)]
