"""Stratified parts: every node has the label mix of the whole training set."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.labels import group_by_label


class Stratified(Partitioner):
    """Give each node the label mix of the whole set, to one sample (Kohavi 1995).

    Sort by label, in random order within a label, and deal one sample to each node in turn.

    Of a label with n samples each of P nodes holds n/P, rounded down or up, and the parts themselves
    are equal to ±1: what random parts are on average, without their chance. As the folds of stratified
    cross-validation (Kohavi 1995, "A Study of Cross-Validation and Bootstrap").
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        order = np.concatenate(group_by_label(labels, rng))
        return [order[node::parts] for node in range(parts)]
