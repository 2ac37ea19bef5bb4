"""A fixed number of classes on each node."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import numpy as np
from pydantic import Field

from trainer.data.base import DataError, Indices, Labels, Partitioner
from trainer.data.labels import assign_by_counts, group_by_label


class Classes(Partitioner):
    """Give each node samples of exactly `per_node` classes (Li et al. 2022).

    "Quantity-based label imbalance", #C = k, of Li et al. 2022 ("Federated Learning on Non-IID Data
    Silos"). Classes are dealt to one node after the other, to each those that the fewest nodes have so
    far, ties drawn at random: the numbers of nodes that hold a class differ by at most 1. A class is
    shared out among its nodes equally to ±1, so the parts are as unequal as the classes are. (Li et al.
    draw the classes without counting, which can leave samples on no node.)

    A single node holds all. If nodes × `per_node` is otherwise less than the number of classes, samples
    would be on no node. That is an error, and so is a class with fewer samples than nodes to hold it.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    per_node: int = Field(2, ge=1, description="classes on each node")

    def validation_error(self, samples: int, classes: int, parts: int) -> str | None:
        if self.per_node > classes:
            return (
                f"per_node {self.per_node} is more than the {classes} classes; it can be at most {classes}"
            )
        if parts > 1 and parts * self.per_node < classes:
            return (
                f"with per_node {self.per_node} only {parts * self.per_node} of {classes} classes would be "
                f"on a node; set per_node to {ceil(classes / parts)} or more, or use more nodes"
            )
        if parts <= samples < parts * self.per_node:
            return (
                f"per_node {self.per_node} in each of {parts} parts needs more than the {samples} samples; "
                "lower per_node or use fewer nodes"
            )
        return super().validation_error(samples, classes, parts)

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        samples = group_by_label(labels, rng)
        holds = np.zeros((len(samples), parts), bool)
        holders = np.zeros(len(samples), np.int64)
        each = self.per_node if parts > 1 else len(samples)
        for node in range(parts):
            hand = np.lexsort((rng.random(len(samples)), holders))[:each]
            holds[hand, node] = True
            holders[hand] += 1
        counts = np.zeros((len(samples), parts), np.int64)
        for row, (of_label, nodes) in enumerate(zip(samples, holders, strict=True)):
            if len(of_label) < nodes:
                raise DataError(
                    f"class {labels[of_label[0]]} has {len(of_label)} samples for the {nodes} nodes that "
                    f"hold it; lower per_node (now {self.per_node}) or use fewer nodes"
                )
            counts[row, holds[row]] = len(of_label) // nodes + (np.arange(nodes) < len(of_label) % nodes)
        return assign_by_counts(samples, counts)
