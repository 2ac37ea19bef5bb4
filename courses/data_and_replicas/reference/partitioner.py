"""Task 1: a partitioner, which assigns training samples to nodes.

Write `MyPartitioner.partition`. It splits the training set at random into parts of equal size (±1), so that
every sample is in exactly one part. The same class works in a sweep: `partitioner:
./partitioner.py:MyPartitioner`.
"""

from typing import ClassVar

import numpy as np

from shardyard import Indices, Labels, Partitioner


class MyPartitioner(Partitioner):
    """Split a random permutation of the training set into parts of equal size (±1)."""

    disjoint: ClassVar[bool] = True  # no sample is in two parts; runs check this
    covers: ClassVar[bool] = True  # every sample is in a part; runs check this

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        """Partition the training set.

        Args:
            labels: int64, shape (samples,); only their number matters here.
            parts: number of parts, at most the number of samples.
            rng: the only source of randomness. All ranks pass equally seeded generators, and must get the
                same parts.

        Returns:
            One array of sample indices (int64, 0 … samples - 1) for each part.
        """
        # solution: write MyPartitioner.partition
        return np.array_split(rng.permutation(len(labels)), parts)
        # end of solution
