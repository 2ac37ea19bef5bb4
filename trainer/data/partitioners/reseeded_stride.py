"""A published sampler with its mistake: strides of permutations that differ from node to node."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner


class ReseededStride(Partitioner):
    """A published mistake: each node takes every P-th sample of its own permutation; parts overlap.

    The "balanced sampler" of a published lab, reproduced so that its numbers can be told from those of a
    split. It is wrong: strides are disjoint only within one permutation, and each node has another one.
    Parts are equal to ±1 and overlap as if drawn at random: the expected coverage is 1 - (1 - 1/P)^P, 75 %
    at two nodes, as in `random_sampling`. One seed for all nodes would have made it `random_partition`.

    Kept is which samples a node has, in law and not number by number: our streams give other permutations.
    Not kept is their order. There, as `set_epoch` was never called, split and order were the same in all
    epochs; here the split is too, unless `reshuffle` is set, but the feed draws each node's order anew in
    every epoch, as under every partitioner.
    """

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return [rng.permutation(len(labels))[node::parts] for node in range(parts)]
