"""A published sampler with its mistake: every node trains on the beginning of the training set."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class PrefixShuffle(Partitioner):
    """A published mistake: every node gets the same first samples / P samples of the file.

    The "random sampler" of a published lab, reproduced so that its numbers can be told from those of a
    split. It is wrong: a node shuffles the indices *below* ceil(samples / P) and never adds where its own
    part begins. Coverage is 1/P, 50 % at two nodes, all of it on every node; the rest of the set is never
    seen. `random_partition` is what was meant.

    Kept is which samples a node has, which no seed changes. Not kept is their order: there every node
    shuffled once and, as `set_epoch` was never called, had one order in all epochs; here the feed draws
    each node's order anew in every epoch, as under every partitioner.
    """

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False
    random: ClassVar[bool] = False

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return [np.arange(ceil(len(labels) / parts)) for _ in range(parts)]
