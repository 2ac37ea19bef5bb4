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

    The "quantity-based label imbalance", #C = k, of Li et al. 2022 ("Federated Learning on Non-IID Data
    Silos"). One node after the other gets the `per_node` classes that the fewest nodes have so far; ties
    are broken at random. The numbers of nodes per class therefore differ by at most 1. The samples of a
    class are divided equally (±1) among its nodes, so part sizes differ only if class sizes do or some
    classes have one node more. Li et al. draw classes independently, which can leave samples on no node.

    A single node gets all classes. With several nodes, nodes × `per_node` must be at least the number of
    classes, since samples of the other classes would be on no node. A class with fewer samples than nodes
    is an error, too.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

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

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
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
