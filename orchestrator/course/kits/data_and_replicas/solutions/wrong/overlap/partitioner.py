"""Draws every part on its own, so samples are in several parts and others in none."""

from typing import ClassVar

from shardyard import Partitioner


class MyPartitioner(Partitioner):
    """Draw a part for each node."""

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def partition(self, labels, parts, rng):
        """Draw samples without replacement within a part only."""
        samples = len(labels)
        sizes = [samples // parts + (part < samples % parts) for part in range(parts)]
        return [rng.choice(samples, size, replace=False) for size in sizes]
