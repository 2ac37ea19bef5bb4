"""Independent draws: every node takes a random sample of the whole training set."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class RandomSampling(Partitioner):
    """Draw samples / P samples for each node independently, so that parts overlap.

    Each node draws without replacement. By design, some samples are on several nodes and some on none:
    the expected coverage is 1 - (1 - 1/P)^P, 75 % for two nodes and 67 % for five.
    """

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False
    random_parts: ClassVar[bool] = True

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        size = ceil(len(labels) / parts)
        return [rng.permutation(len(labels))[:size] for _ in range(parts)]
