"""Which samples each rank trains on, and a summary of that partition. Imports no torch.

`parts_of` is the only place where a spec becomes a partition: the loader trains on its result, and the
command `partitions` shows it without training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.core.rng import RngFactory
from trainer.data.base import Indices, Labels
from trainer.data.certificate import (
    Counts,
    Coverage,
    earth_movers_distance,
    js_divergence,
    label_counts,
)
from trainer.spec.run_spec import RunSpec


def split_number(spec: RunSpec, epoch: int) -> int:
    """Which split is in force in `epoch` (1-based): its own if parts are reshuffled, else 0 throughout."""
    return epoch if spec.partitioner.reshuffle else 0


def parts_of(spec: RunSpec, rngs: RngFactory, labels: Labels, size: int, epoch: int) -> list[Indices]:
    """The samples of each of `size` ranks in `epoch` (1-based), sorted.

    labels: of the training split, int64, shape (samples,). Raises what the partitioner does.
    """
    if not spec.strategy.uses_partition:
        return [np.arange(len(labels))] * size
    rng = rngs.generator("partition", split_number(spec, epoch))
    # A part is a set, its order is drawn apart: on one node every strategy then trains as serial does.
    return [np.sort(part) for part in spec.partitioner.split(labels, size, rng)]


@dataclass(frozen=True)
class PartitionSummary:
    """How the samples of one epoch lie over the ranks.

    labels: samples per rank and class, int64, shape (ranks, classes). coverage, overlap: shares of the
    training set, 0 … 1. js_divergence (bits) and earth_movers_distance (0 … 2): of each rank's labels from
    the whole set's; the distances are empty where a result does not have them.
    """

    labels: Counts
    coverage: float
    overlap: float
    js_divergence: tuple[float, ...]
    earth_movers_distance: tuple[float, ...]

    @property
    def sizes(self) -> Counts:
        """Samples on each rank."""
        sizes: Counts = self.labels.sum(axis=1)
        return sizes

    @property
    def classes_held(self) -> Counts:
        """On each rank, the classes that it has at least one sample of."""
        held: Counts = np.count_nonzero(self.labels, axis=1)
        return held


def partition_summary(spec: RunSpec, labels: Labels, classes: int, epoch: int = 1) -> PartitionSummary:
    """The split that a run of `spec` trains on in `epoch`. Raises what the partitioner does."""
    parts = parts_of(spec, RngFactory(spec.seed), labels, spec.num_replicas, epoch)
    whole, spread = label_counts(labels, classes), Coverage.of(parts, len(labels))
    counts = np.array([label_counts(labels[part], classes) for part in parts])
    return PartitionSummary(
        labels=counts,
        coverage=spread.coverage,
        overlap=spread.overlap,
        js_divergence=tuple(js_divergence(part, whole) for part in counts),
        earth_movers_distance=tuple(earth_movers_distance(part, whole) for part in counts),
    )
