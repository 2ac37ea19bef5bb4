"""The certificate: which samples each rank trained on, their coverage, overlap and label distribution.

Every rank writes a `PartitionRecord` per epoch, computed from the samples it trained on. The first training
rank writes a `CoverageRecord` per epoch, computed from the planned partitions. Their digests must agree,
which proves that the ranks trained on the planned samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from trainer.core.event_schema import CoverageRecord, PartitionRecord, PlannedPart
from trainer.core.events import combined_digest
from trainer.data.base import Indices, Labels

Counts = npt.NDArray[np.int64]


def part_digest(indices: Indices) -> str:
    """16 hex digits that identify a set of samples, independent of their order."""
    return sha256(np.sort(indices).astype("<i8").tobytes()).hexdigest()[:16]


def label_counts(labels: Labels, classes: int) -> Counts:
    """Samples per class, int64, shape (classes,)."""
    return np.bincount(labels, minlength=classes)


def js_divergence(p_counts: npt.ArrayLike, q_counts: npt.ArrayLike) -> float:
    """Jensen–Shannon divergence of two label distributions in bits: 0 equal, 1 disjoint (Lin 1991).

    Takes counts, shape (classes,), each with at least one sample.
    """
    p = np.asarray(p_counts, dtype=float) / np.sum(p_counts)
    q = np.asarray(q_counts, dtype=float) / np.sum(q_counts)
    middle = (p + q) / 2

    def relative_entropy(a: npt.NDArray[np.float64]) -> float:
        held = a > 0
        return float(np.sum(a[held] * np.log2(a[held] / middle[held])))

    return max(0.0, (relative_entropy(p) + relative_entropy(q)) / 2)


def earth_movers_distance(p_counts: npt.ArrayLike, q_counts: npt.ArrayLike) -> float:
    """Distance of two label distributions, the sum over labels of |p - q|: 0 equal, 2 disjoint.

    Takes counts as `js_divergence` does. All labels are equally far apart, so this is twice the total
    variation distance. Zhao et al. 2018, "Federated Learning with Non-IID Data", relate it to the loss of
    accuracy, under this name.
    """
    p = np.asarray(p_counts, dtype=float) / np.sum(p_counts)
    q = np.asarray(q_counts, dtype=float) / np.sum(q_counts)
    return float(np.abs(p - q).sum())


def partition_record(
    epoch: int,
    trained_on: Indices,
    labels: Labels,
    classes: int,
    before: Counts | None = None,
    rounds: int | None = None,
    data: str | None = None,
) -> PartitionRecord:
    """The record of one rank's epoch.

    Args:
        epoch: Its number, from 1.
        trained_on: Indices of the samples trained on in this epoch.
        labels: Labels of the training set, shape (samples,).
        classes: Number of classes.
        before: Samples per class in earlier epochs, shape (classes,).
        rounds: Rounds in which the rank took part; None if all ranks take part in all rounds.
        data: See Data.digest.
    """
    counts, whole = label_counts(labels[trained_on], classes), label_counts(labels, classes)
    so_far = counts if before is None else counts + before
    return PartitionRecord(
        epoch=epoch,
        samples=len(trained_on),
        labels=counts.tolist(),
        js_divergence=js_divergence(counts, whole) if counts.any() else None,
        js_divergence_so_far=js_divergence(so_far, whole) if so_far.any() else None,
        earth_movers_distance=earth_movers_distance(counts, whole) if counts.any() else None,
        digest=part_digest(trained_on),
        rounds=rounds,
        data=data,
    )


@dataclass(frozen=True)
class Coverage:
    """Coverage and overlap of partitions, as shares of the training set, 0 … 1."""

    coverage: float  # samples in at least one partition
    overlap: float  # samples in at least two partitions

    @classmethod
    def of(cls, parts: Sequence[Indices], samples: int) -> Coverage:
        """parts: indices into a set of `samples`; a repeated sample counts once per partition."""
        holders = np.zeros(samples, dtype=np.int64)
        for part in parts:
            holders[np.unique(part)] += 1
        return cls(float(np.mean(holders >= 1)), float(np.mean(holders >= 2)))


class CoverageTracker:
    """Tracks the coverage of the planned partitions over epochs. Used on ranks that report it."""

    def __init__(self, samples: int, nodes: int) -> None:
        self._samples, self._nodes = samples, nodes
        self._seen: list[npt.NDArray[np.bool_]] = []  # by partition; on few ranks, since it is large

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Whether each partition has contained each sample so far, shape (partitions, samples).

        Of shape (0, samples) before the first epoch is added.
        """
        return np.array(self._seen, dtype=bool).reshape(-1, self._samples)

    @seen.setter
    def seen(self, seen: npt.NDArray[np.bool_]) -> None:
        self._seen = list(seen)

    def add(self, parts: Sequence[Indices]) -> None:
        """Add the partitions of one epoch."""
        if not self._seen:
            self._seen = [np.zeros(self._samples, dtype=bool) for _ in range(self._nodes)]
        for seen, part in zip(self._seen, parts, strict=True):
            seen[part] = True

    def epoch(
        self, epoch: int, parts: Sequence[Indices], uneven: str = "join", each: bool = False
    ) -> CoverageRecord:
        """Add the partitions of one epoch and return its record. each: whether to list every part."""
        self.add(parts)
        now = Coverage.of(parts, self._samples)
        so_far = Coverage.of([np.flatnonzero(seen) for seen in self._seen], self._samples)
        digests = [part_digest(part) for part in parts]
        planned = None
        if each:
            sizes = [len(part) for part in parts]
            planned = [PlannedPart(samples=n, digest=d) for n, d in zip(sizes, digests, strict=True)]
        return CoverageRecord(
            epoch=epoch,
            uneven=uneven,
            coverage=now.coverage,
            overlap=now.overlap,
            coverage_so_far=so_far.coverage,
            overlap_so_far=so_far.overlap,
            digest=combined_digest(digests),
            parts=planned,
        )
