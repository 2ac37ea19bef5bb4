"""Mistakes in the certificate: coverage and overlap, of an epoch and so far, distances of labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.core.events import MAX_BYTES, combined_digest
from trainer.data.certificate import (
    CoverageTracker,
    earth_movers_distance,
    js_divergence,
    part_digest,
    partition_record,
)

SAMPLES, NODES = 8, 3
PART = st.lists(st.integers(0, SAMPLES - 1), max_size=6)  # a partitioner may repeat a sample


def shares(held: list[set[int]]) -> tuple[float, float]:
    """Coverage and overlap."""
    holders = [sum(sample in part for part in held) for sample in range(SAMPLES)]
    coverage, overlap = (sum(number >= least for number in holders) / SAMPLES for least in (1, 2))
    return coverage, overlap


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(PART, PART, PART), min_size=1, max_size=3))
def test_coverage_and_overlap_are_those_of_sets_in_an_epoch_and_so_far(
    epochs: list[tuple[list[int], ...]],
) -> None:
    tracker, so_far = CoverageTracker(SAMPLES, NODES), [set[int]() for _ in range(NODES)]
    for number, parts in enumerate(epochs, start=1):
        arrays = [np.array(part, dtype=np.int64) for part in parts]
        record = tracker.epoch(number, arrays, "drop", each=number > 1)
        so_far = [seen | {*part} for seen, part in zip(so_far, parts, strict=True)]
        assert (record.epoch, record.uneven) == (number, "drop")
        assert (record.coverage, record.overlap) == shares([*map(set, parts)])
        assert (record.coverage_so_far, record.overlap_so_far) == shares(so_far)
        digests = [*map(part_digest, arrays)]
        assert record.digest == combined_digest(digests)
        listed = [(part.samples, part.digest) for part in record.parts or ()]
        assert listed == ([*zip(map(len, parts), digests, strict=True)] if number > 1 else [])
    resumed = CoverageTracker(SAMPLES, NODES)
    assert resumed.seen.shape == (0, SAMPLES)
    resumed.seen = tracker.seen
    assert resumed.seen.tolist() == [[sample in seen for sample in range(SAMPLES)] for seen in so_far]


def entropy(counts: np.ndarray) -> float:
    """In bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


COUNTS = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any)


@settings(max_examples=40, deadline=None)
@given(COUNTS, COUNTS)
def test_distances_of_labels_are_those_of_entropies_and_of_moved_shares(
    first: list[int], second: list[int]
) -> None:
    p, q = np.array(first), np.array(second)
    shares = p / p.sum(), q / q.sum()
    expected = entropy((shares[0] + shares[1]) / 2) - (entropy(p) + entropy(q)) / 2
    assert js_divergence(p, q) == pytest.approx(expected, abs=1e-9)
    assert js_divergence(p, 3 * p) >= 0
    assert earth_movers_distance(p, q) == pytest.approx(2 * np.maximum(*shares).sum() - 2, abs=1e-9)


def test_the_record_of_a_part_counts_its_labels_and_those_of_earlier_epochs() -> None:
    labels, before = np.array([0, 0, 0, 0, 1, 1, 2, 2]), np.array([2, 0, 1, 0])
    whole = [4, 2, 2, 0]
    first = partition_record(3, np.array([7, 0, 1]), labels, 4)
    assert (first.epoch, first.samples, first.labels) == (3, 3, [2, 0, 1, 0])
    assert first.js_divergence == first.js_divergence_so_far == js_divergence(before, whole)
    assert first.earth_movers_distance == earth_movers_distance(before, whole)
    assert first.digest == part_digest(np.array([0, 1, 7], np.int32)) != part_digest(np.array([0, 1, 6]))
    second = partition_record(4, np.array([4]), labels, 4, before, rounds=5, data="d")
    assert (second.js_divergence, second.rounds) == (js_divergence([0, 1, 0, 0], whole), 5)
    assert (second.js_divergence_so_far, second.data) == (js_divergence([2, 1, 1, 0], whole), "d")
    idle = partition_record(4, np.array([], int), labels, 4, before)
    assert (idle.js_divergence, idle.earth_movers_distance) == (None, None)
    assert idle.js_divergence_so_far == first.js_divergence
    largest = partition_record(1, np.arange(100), np.zeros(100, int), classes=1000)
    assert len(str(largest.model_dump())) < MAX_BYTES
