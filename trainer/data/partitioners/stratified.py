"""Stratified parts: every node has the label mix of the whole training set."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.labels import group_by_label


class Stratified(Partitioner):
    """Give each node the label mix of the whole set, to one sample (Kohavi 1995).

    The samples are sorted by label, in random order within a label, and dealt to the nodes in turn.

    Of a label with n samples, each of P nodes gets n/P, rounded down or up. Part sizes differ by at most 1.
    Random parts have the same label mix only on average. The folds of stratified cross-validation are
    formed like this (Kohavi 1995, "A Study of Cross-Validation and Bootstrap").
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    random_parts: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        order = np.concatenate(group_by_label(labels, rng))
        return [order[node::parts] for node in range(parts)]
