"""A published sampler with a mistake: every node trains on the beginning of the training set."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class PrefixShuffle(Partitioner):
    """A published mistake: every node gets the same first samples / P samples of the file.

    The "random sampler" of a published lab, reproduced to compare it with a correct partition. The
    mistake: each node shuffles the indices below ceil(samples / P) and never adds the start of its own
    part. All nodes get the same samples, so coverage is 1/P, 50 % at two nodes. The lab intended
    `random_partition`.

    Nodes get the samples of the published code, with every seed. Only their order differs: the published
    code shuffles once and never calls `set_epoch`, so all epochs have the same order. Here the loader
    draws a new order in every epoch, as with every partitioner.
    """

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False
    random: ClassVar[bool] = False

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return [np.arange(ceil(len(labels) / parts)) for _ in range(parts)]
