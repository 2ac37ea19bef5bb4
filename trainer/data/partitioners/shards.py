"""Shards: sorted by label and cut small, so that a node sees few labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.labels import group_by_label


class Shards(Partitioner):
    """Sort by label and deal each node `per_node` consecutive shards (McMahan et al. 2017).

    The sorted set is cut into P × `per_node` shards of equal size (±1).

    The pathological split of McMahan et al. 2017 ("Communication-Efficient Learning of Deep Networks
    from Decentralized Data"), there with 2 shards of 300 images for each of 100 nodes. Where the shards
    of a class come out even, a node sees at most `per_node` labels; a shard in which a label ends holds
    the next one too. Parts are equal to ±`per_node`. Shards are dealt at random, and so is the order
    within a label.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    per_node: int = Field(2, ge=1, description="shards of each node")

    def validation_error(self, samples: int, classes: int, parts: int) -> str | None:
        if parts <= samples < parts * self.per_node:
            return (
                f"per_node {self.per_node} for {parts} parts makes more shards than the {samples} samples; "
                f"it can be at most {samples // parts}"
            )
        return super().validation_error(samples, classes, parts)

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        shards = np.array_split(np.concatenate(group_by_label(labels, rng)), parts * self.per_node)
        hands = rng.permutation(len(shards)).reshape(parts, self.per_node)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]
