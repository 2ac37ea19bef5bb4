"""The certificate: what share of the training set was really used, by whom, and with which labels.

Two kinds of record make it up. Every node writes a `PartitionRecord` of the samples it fed to its model in
an epoch; the first that trains a `CoverageRecord` of all partitions. A digest ties them together: the
epoch's digest is computed from the split, the parts' digests from the samples as they were fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from trainer.core.events import combined_digest
from trainer.core.record import Record
from trainer.data.base import Indices, Labels

Counts = npt.NDArray[np.int64]


def part_digest(indices: Indices) -> str:
    """16 hex digits that name a set of samples, whatever its order."""
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

    Takes counts as `js_divergence` does. Labels have no order, so all earth is moved equally far, and what
    is left is twice the total variation; called so by Zhao et al. 2018, "Federated learning with non-IID
    data", who tie the accuracy that is lost to it.
    """
    p = np.asarray(p_counts, dtype=float) / np.sum(p_counts)
    q = np.asarray(q_counts, dtype=float) / np.sum(q_counts)
    return float(np.abs(p - q).sum())


class PartitionRecord(Record):
    """What one node fed to its model in one epoch."""

    epoch: int
    samples: int
    labels: list[int]  # samples per class
    js_divergence: float  # of this part's labels from the whole set's, bits
    js_divergence_so_far: float  # of all labels that the node was fed up to this epoch
    earth_movers_distance: float | None = None  # of this part's labels from the whole set's, 0 … 2
    digest: str

    @classmethod
    def of(
        cls, epoch: int, fed: Indices, labels: Labels, classes: int, before: Counts | None = None
    ) -> PartitionRecord:
        """fed: samples of this epoch. before: samples per class in earlier epochs, shape (classes,)."""
        counts, whole = label_counts(labels[fed], classes), label_counts(labels, classes)
        return cls(
            epoch=epoch,
            samples=len(fed),
            labels=counts.tolist(),
            js_divergence=js_divergence(counts, whole),
            js_divergence_so_far=js_divergence(counts if before is None else counts + before, whole),
            earth_movers_distance=earth_movers_distance(counts, whole),
            digest=part_digest(fed),
        )


@dataclass(frozen=True)
class Coverage:
    """How the samples lie over the nodes. Shares are of the training set, 0 … 1."""

    coverage: float  # on at least one node
    overlap: float  # on at least two nodes

    @classmethod
    def of(cls, parts: Sequence[Indices], samples: int) -> Coverage:
        """parts: indices into a set of `samples`; a sample repeated within one part counts once."""
        holders = np.zeros(samples, dtype=np.int64)
        for part in parts:
            holders[np.unique(part)] += 1
        return cls(float(np.mean(holders >= 1)), float(np.mean(holders >= 2)))


class CoverageRecord(Record):
    """What the nodes together were to feed in one epoch, and in all epochs up to it.

    uneven: what was done about parts of different size: join, drop or pad; see trainer.core.strategy.
    """

    epoch: int
    uneven: str = "join"
    coverage: float
    overlap: float
    coverage_so_far: float
    overlap_so_far: float
    digest: str


class CoverageTracker:
    """The first node's book of the whole split, epoch by epoch."""

    def __init__(self, samples: int, nodes: int) -> None:
        self._samples = samples
        self._seen: list[npt.NDArray[np.bool_]] = [np.zeros(samples, dtype=bool) for _ in range(nodes)]

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Which samples each node was to feed so far, shape (nodes, samples)."""
        return np.stack(self._seen)

    @seen.setter
    def seen(self, seen: npt.NDArray[np.bool_]) -> None:
        self._seen = list(seen)

    def epoch(self, epoch: int, parts: Sequence[Indices], uneven: str = "join") -> CoverageRecord:
        """Enter what each node feeds in one epoch, and return its record."""
        for seen, part in zip(self._seen, parts, strict=True):
            seen[part] = True
        now = Coverage.of(parts, self._samples)
        so_far = Coverage.of([np.flatnonzero(seen) for seen in self._seen], self._samples)
        return CoverageRecord(
            epoch=epoch,
            uneven=uneven,
            coverage=now.coverage,
            overlap=now.overlap,
            coverage_so_far=so_far.coverage,
            overlap_so_far=so_far.overlap,
            digest=combined_digest(part_digest(part) for part in parts),
        )
