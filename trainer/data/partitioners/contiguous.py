"""Contiguous parts: the training set, split in the order of its file."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class Contiguous(Partitioner):
    """Split the file into consecutive parts of equal size (±1).

    The first `samples mod parts` nodes get one sample more. If the file is shuffled, the parts are like
    random ones. If it is sorted, for example by class or time, each node gets another distribution.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    even_parts: ClassVar[bool] = True
    random: ClassVar[bool] = False

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return np.array_split(np.arange(len(labels)), parts)
