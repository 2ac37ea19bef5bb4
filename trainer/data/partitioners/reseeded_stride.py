"""A published sampler with a mistake: strides of permutations that differ from node to node."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class ReseededStride(Partitioner):
    """A published mistake: each node takes every P-th sample of its own permutation; parts overlap.

    The "balanced sampler" of a published lab, reproduced to compare it with a correct partition. The
    mistake: strides are disjoint only within one permutation, but each node has its own. Part sizes differ
    by at most 1, and parts overlap as if drawn at random: the expected coverage is 1 - (1 - 1/P)^P, 75 % at
    two nodes, as in `random_sampling`. With one seed for all nodes this would be `random_partition`.

    A node's samples have the same distribution as in the published code, but are not the same samples,
    because another generator draws the permutations. The published code never calls `set_epoch`, so all
    epochs have the same split and order. Here the split is the same, too, unless `reshuffle` is set, but
    the loader draws a new order in every epoch, as with every partitioner.
    """

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False
    random_parts: ClassVar[bool] = True

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return [rng.permutation(len(labels))[node::parts] for node in range(parts)]
