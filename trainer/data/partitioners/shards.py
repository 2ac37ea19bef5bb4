"""Shards: the set is sorted by label and split into shards, so that each node has few labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.labels import group_by_label


class Shards(Partitioner):
    """Sort by label and deal each node `per_node` consecutive shards (McMahan et al. 2017).

    The sorted set is split into P × `per_node` shards of equal size (±1). Shards are dealt at random, and
    the order within a label is random.

    The pathological non-IID partition of McMahan et al. 2017 ("Communication-Efficient Learning of Deep
    Networks from Decentralized Data"), which has 2 shards of 300 images for each of 100 nodes. If every
    shard has one label, a node has at most `per_node` labels. A shard in which a label ends also has
    samples of the next label. Part sizes differ by at most `per_node`.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    per_node: int = Field(2, ge=1, description="shards of each node")

    def validation_error(self, samples: int, classes: int, parts: int) -> str | None:
        if parts <= samples < parts * self.per_node:
            return (
                f"per_node {self.per_node} for {parts} parts makes more shards than the {samples} samples; "
                f"it can be at most {samples // parts}"
            )
        return super().validation_error(samples, classes, parts)

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        shards = np.array_split(np.concatenate(group_by_label(labels, rng)), parts * self.per_node)
        hands = rng.permutation(len(shards)).reshape(parts, self.per_node)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]
