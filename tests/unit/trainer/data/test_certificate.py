"""The certificate's figures, compared with hand-computed values and with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from trainer.core.event_schema import CoverageRecord
from trainer.core.events import MAX_BYTES, combined_digest
from trainer.data.certificate import (
    Coverage,
    CoverageTracker,
    earth_movers_distance,
    js_divergence,
    label_counts,
    part_digest,
    partition_record,
)


def parts(*indices: list[int] | range) -> list[np.ndarray]:
    return [np.array(part, dtype=np.int64) for part in indices]


# Coverage and overlap


@pytest.mark.parametrize(
    ("split", "samples", "coverage", "overlap"),
    [
        (parts(range(5), range(5, 10)), 10, 1.0, 0.0),  # a partition
        (parts(range(10)), 10, 1.0, 0.0),  # one node holds everything
        (parts(range(5), range(5)), 10, 0.5, 0.5),  # the lab's two nodes with one seed: the same half
        (parts(range(50), range(25, 75)), 100, 0.75, 0.25),  # the expectation for two random halves
        (parts([0, 1], [1, 2], [1, 3]), 8, 0.5, 0.125),  # a sample on three nodes counts once
        (parts([0, 0, 0], [1]), 4, 0.5, 0.0),  # a repetition within a node is no overlap
        (parts([3], [3], [3]), 4, 0.25, 0.25),
    ],
)
def test_spread(split: list[np.ndarray], samples: int, coverage: float, overlap: float) -> None:
    assert Coverage.of(split, samples) == Coverage(coverage, overlap)


def test_coverage_of_an_epoch_and_of_all_epochs_so_far() -> None:
    certifier = CoverageTracker(samples=10, nodes=2)
    first = certifier.epoch(1, parts([0, 1, 2], [3, 4, 5]))
    assert (first.epoch, first.coverage, first.overlap) == (1, 0.6, 0.0)
    assert (first.coverage_so_far, first.overlap_so_far) == (0.6, 0.0)
    # Node 0 gets two of its own samples again and one of node 1's; node 1 gets two new ones.
    second = certifier.epoch(2, parts([0, 1, 3], [8, 9]))
    assert (second.epoch, second.coverage, second.overlap) == (2, 0.5, 0.0)
    assert (second.coverage_so_far, second.overlap_so_far) == (0.8, 0.1)
    third = certifier.epoch(3, parts([6, 7], [6, 7]))
    assert (third.coverage, third.overlap) == (0.2, 0.2)
    assert third.coverage_so_far == 1.0
    assert third.overlap_so_far == pytest.approx(0.3)


def test_coverage_needs_a_part_for_every_node() -> None:
    with pytest.raises(ValueError, match="shorter"):
        CoverageTracker(10, 3).epoch(1, parts([0], [1]))


# Digests


def test_part_digest_ignores_the_order_of_samples() -> None:
    name = part_digest(np.array([3, 1, 2]))
    assert name == part_digest(np.array([1, 2, 3], dtype=np.int32))
    assert len(name) == 16
    others = [[1, 2], [1, 2, 4], [1, 2, 3, 3], [1, 1, 2, 3], [12, 3]]
    assert len({name, *(part_digest(np.array(other)) for other in others)}) == 1 + len(others)


def test_coverage_digest_combines_the_digests_of_the_parts() -> None:
    split = parts([4, 2, 0], [1, 3])
    record = CoverageTracker(5, 2).epoch(1, split)
    labels = np.array([0, 1, 0, 1, 0])
    records = [partition_record(1, order, labels, 2) for order in parts([0, 2, 4], [3, 1])]
    assert record.digest == combined_digest(part.digest for part in records)
    exchanged = [partition_record(1, order, labels, 2) for order in parts([0, 2, 1], [3, 4])]
    assert record.digest != combined_digest(part.digest for part in exchanged)


# Labels


def test_part_record() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    record = partition_record(3, np.array([7, 0, 1]), labels, classes=4)
    assert (record.epoch, record.samples, record.labels) == (3, 3, [2, 0, 1, 0])
    assert record.js_divergence == pytest.approx(jensenshannon([2, 0, 1, 0], [4, 2, 2, 0], base=2) ** 2)
    assert record.js_divergence_so_far == record.js_divergence
    assert record.earth_movers_distance == pytest.approx(2 / 3 - 1 / 2 + 1 / 4 + 1 / 3 - 1 / 4)
    assert label_counts(labels, 4).tolist() == [4, 2, 2, 0]


def test_labels_accumulate_over_epochs() -> None:
    labels = np.array([0, 0, 1, 1])
    first = partition_record(1, np.array([0, 1]), labels, classes=2)
    second = partition_record(2, np.array([2, 3]), labels, classes=2, before=np.array(first.labels))
    assert first.js_divergence == pytest.approx(second.js_divergence)
    assert first.js_divergence_so_far > 0.3
    assert second.js_divergence_so_far == 0


@pytest.mark.parametrize(
    ("p", "q", "bits"),
    [
        ([1, 2, 3], [10, 20, 30], 0.0),
        ([5, 0], [0, 7], 1.0),
        ([1, 0], [1, 1], 0.311278),  # 3/4 of the entropy of (3/4, 1/4) is missing: 1 - log2(3) * 3/4 + ...
        ([0, 0, 1], [1, 0, 0], 1.0),
    ],
)
def test_js_divergence_hand_computed(p: list[int], q: list[int], bits: float) -> None:
    assert js_divergence(p, q) == pytest.approx(bits, abs=1e-6)
    assert js_divergence(q, p) == pytest.approx(bits, abs=1e-6)


def test_js_divergence_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 10, 100):
        for _ in range(20):
            p, q = rng.integers(0, 50, (2, classes))
            p[0], q[-1] = 1, 1  # at least one sample each
            value = js_divergence(p, q)
            assert value == pytest.approx(jensenshannon(p, q, base=2) ** 2, abs=1e-12)
            assert 0 <= value <= 1


def test_js_divergence_of_nearly_equal_counts_is_not_negative() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        p = rng.integers(1, 10**6, 10)
        assert js_divergence(p, p * 3) >= 0


@pytest.mark.parametrize(
    ("p", "q", "distance"),
    [
        ([1, 2, 3], [10, 20, 30], 0.0),
        ([5, 0], [0, 7], 2.0),
        ([1, 0], [1, 1], 1.0),
        ([60] + [0] * 9, [6] * 10, 1.8),  # one of ten classes (Zhao et al. 2018): 0.9 + 9 * 0.1
        ([30, 30] + [0] * 8, [6] * 10, 1.6),  # two of ten
        ([3, 1, 0], [1, 1, 2], 1.0),  # |3/4 - 1/4| + |1/4 - 1/4| + |0 - 1/2|
    ],
)
def test_earth_movers_distance_hand_computed(p: list[int], q: list[int], distance: float) -> None:
    assert earth_movers_distance(p, q) == pytest.approx(distance, abs=1e-12)
    assert earth_movers_distance(q, p) == pytest.approx(distance, abs=1e-12)


def test_largest_record_fits_an_event() -> None:
    record = CoverageTracker(2, 1).epoch(1, parts([0, 1]))
    assert CoverageRecord(**record.model_dump()) == record
    part = partition_record(1, np.arange(100), np.zeros(100, int), classes=1000)
    assert len(str(part.model_dump())) < MAX_BYTES  # 1000 classes, as in ImageNet
