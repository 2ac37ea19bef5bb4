"""The partition of the training set over ranks, and its summary. Imports no torch.

`partition` is the only place where a spec becomes a partition: the loader trains on its result, and the
command `partitions` shows it without training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.data.base import DataError, Indices, Labels
from trainer.data.certificate import Counts, Coverage, earth_movers_distance, js_divergence, label_counts
from trainer.spec.run_spec import RunSpec


class StepSizes(tuple[int, ...]):
    """The samples of each part in a step."""

    @cached_property
    def total(self) -> int:
        """Those of all parts. Every rank asks for it in every step."""
        return sum(self)


class Partition:
    """The parts of an epoch's samples, and their batches."""

    def __init__(self, parts: list[Indices], batch: int) -> None:
        """batch: samples per step of each part."""
        self.parts, self._batch = parts, batch
        self.sizes = [len(part) for part in parts]
        self.steps = [ceil(size / batch) for size in self.sizes]
        self._in_step: dict[tuple[int, Uneven], StepSizes] = {}

    def synchronous_steps(self, uneven: Uneven) -> int:
        """The steps of an epoch in which every part takes equally many."""
        return min(self.steps) if uneven == "drop" else max(self.steps)

    def in_step(self, step: int, uneven: Uneven) -> StepSizes:
        """The samples of each part in a step, 0-based."""
        if (step, uneven) not in self._in_step:
            sizes, batch = self.sizes, self._batch
            if uneven != "join":
                sizes = [min(sizes) if uneven == "drop" else max(sizes)] * len(sizes)
            self._in_step[step, uneven] = StepSizes(
                min(max(part - step * batch, 0), batch) for part in sizes
            )
        return self._in_step[step, uneven]


def partition_number(spec: RunSpec, epoch: int) -> int:
    """The partition used in `epoch` (1-based): one per epoch if it is reshuffled, else always 0."""
    return epoch if spec.partitioner.reshuffle else 0


def partition(spec: RunSpec, rngs: RngFactory, labels: Labels, size: int, epoch: int) -> list[Indices]:
    """The samples of each of `size` parts in `epoch` (1-based), sorted.

    labels: the labels of the training split, int64, shape (samples,).

    Raises:
        DataError: The split is not possible, or is not what the partitioner declares.
    """
    if not spec.strategy.uses_partition:
        return [np.arange(len(labels))] * size
    rng = rngs.generator("partition", partition_number(spec, epoch))
    split = spec.partitioner.partition(labels, size, rng)
    if error := spec.partitioner.split_error(split, len(labels), size):
        raise DataError(f"partitioner {spec.name_of('partitioner')} has a defect: {error}")
    # The order of a part is drawn separately, so every strategy on one node trains as serial does.
    return [np.sort(part) for part in split]


@dataclass(frozen=True)
class PartitionSummary:
    """Distribution of one epoch's samples over the ranks.

    labels: samples per rank and class, int64, shape (ranks, classes). coverage, overlap: shares of the
    training set, 0 … 1. js_divergence (bits) and earth_movers_distance (0 … 2): the distances of each
    rank's labels from the whole set's; they are empty where a result does not have them.
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
        """Number of classes with at least one sample, on each rank."""
        held: Counts = np.count_nonzero(self.labels, axis=1)
        return held


def partition_summary(spec: RunSpec, labels: Labels, classes: int, epoch: int = 1) -> PartitionSummary:
    """Summary of the partition that a run of `spec` trains on in `epoch`. Raises DataError."""
    rngs = RngFactory(spec.seed, spec.vary)
    parts = partition(spec, rngs, labels, spec.num_replicas, epoch)
    whole, spread = label_counts(labels, classes), Coverage.of(parts, len(labels))
    counts = np.array([label_counts(labels[part], classes) for part in parts])
    return PartitionSummary(
        labels=counts,
        coverage=spread.coverage,
        overlap=spread.overlap,
        js_divergence=tuple(js_divergence(part, whole) for part in counts),
        earth_movers_distance=tuple(earth_movers_distance(part, whole) for part in counts),
    )
