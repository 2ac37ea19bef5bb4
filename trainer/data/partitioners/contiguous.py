"""Contiguous parts: the training set cut into pieces as it lies in its file."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class Contiguous(Partitioner):
    """Split the file into consecutive parts of equal size (±1).

    The first `samples mod parts` nodes hold one sample more. A file that was shuffled gives parts as
    random ones; one that is sorted, by class or by time, gives each node another piece of the world.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    random: ClassVar[bool] = False

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return np.array_split(np.arange(len(labels)), parts)
