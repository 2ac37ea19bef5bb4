"""Every registered partitioner keeps the promises of `Partitioner`; a new entry is tested, too."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.partitioners import PARTITIONERS
from trainer.data.partitioners.random_partition import RandomPartition
from trainer.data.partitioners.random_sampling import RandomSampling

CLASSES = 10


def labels_of(samples: int) -> Labels:
    """Labels of uneven frequency, as real ones are."""
    return np.sqrt(np.random.default_rng(9).integers(0, CLASSES**2, samples)).astype(np.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(params=list(PARTITIONERS.entries))
def partitioner(request: pytest.FixtureRequest) -> Partitioner:
    return PARTITIONERS.parse(request.param)


def assert_valid(parts: list[Indices], wanted: int, samples: int) -> None:
    assert len(parts) == wanted
    for part in parts:
        assert isinstance(part, np.ndarray)
        assert part.ndim == 1
        assert np.issubdtype(part.dtype, np.integer)
        assert len(part) > 0
        assert part.min() >= 0
        assert part.max() < samples


def assert_as_declared(partitioner: Partitioner, parts: list[Indices], samples: int) -> None:
    holders = np.zeros(samples, int)
    for part in parts:
        np.add.at(holders, part, 1)  # counts a repetition inside a part, too
    if partitioner.disjoint:
        assert holders.max() == 1
    if partitioner.covers:
        assert holders.min() >= 1


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 64, 999, 1000])
@pytest.mark.parametrize("samples", [1000, 1437])
def test_parts_are_valid_and_as_declared(partitioner: Partitioner, samples: int, parts: int) -> None:
    split = partitioner.split(labels_of(samples), parts, rng())
    assert_valid(split, parts, samples)
    assert_as_declared(partitioner, split, samples)


def test_sixty_thousand_samples_into_a_thousand_parts(partitioner: Partitioner) -> None:
    split = partitioner.split(labels_of(60_000), 1000, rng())
    assert_valid(split, 1000, 60_000)
    assert_as_declared(partitioner, split, 60_000)


@pytest.mark.parametrize("parts", [2, 11, 1000])
def test_a_part_is_never_empty(partitioner: Partitioner, parts: int) -> None:
    with pytest.raises(ValueError, match=str(parts)):
        partitioner.split(labels_of(parts - 1), parts, rng())


@pytest.mark.parametrize("labels", [np.zeros(50, np.int64), np.arange(50) // 49], ids=["one", "rare"])
def test_classes_of_any_frequency(partitioner: Partitioner, labels: Labels) -> None:
    try:
        split = partitioner.split(labels, 4, rng())
    except ValueError:
        return  # it may say that a part would be empty
    assert_valid(split, 4, 50)
    assert_as_declared(partitioner, split, 50)


def test_every_rank_that_asks_gets_the_same_split(partitioner: Partitioner) -> None:
    labels = labels_of(500)
    np.random.seed(1)
    first = partitioner.split(labels, 5, rng(3))
    np.random.seed(2)  # nothing but the arguments counts, and not what was asked before
    partitioner.split(labels, 2, rng(4))
    again = partitioner.split(labels, 5, rng(3))
    for ours, theirs in zip(first, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_seed_is_another_split(partitioner: Partitioner) -> None:
    first, second = (partitioner.split(labels_of(500), 5, rng(seed)) for seed in (1, 2))
    same = [np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, second, strict=True)]
    assert not any(same)


def test_labels_are_not_touched(partitioner: Partitioner) -> None:
    labels = labels_of(500)
    before = labels.copy()
    labels.flags.writeable = False
    partitioner.split(labels, 5, rng())
    np.testing.assert_array_equal(labels, before)


# Each its own


@pytest.mark.parametrize(("samples", "parts"), [(1437, 5), (10, 3), (1000, 1000), (60_000, 7)])
def test_random_partition_is_equal_to_one_sample(samples: int, parts: int) -> None:
    sizes = [len(part) for part in RandomPartition().split(labels_of(samples), parts, rng())]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) == (0 if samples % parts == 0 else 1)


def test_random_partition_does_not_follow_the_order_of_the_file() -> None:
    labels = np.repeat(np.arange(10), 100)  # sorted by class: consecutive parts would be of two classes
    for part in RandomPartition().split(labels, 5, rng()):
        assert len(np.unique(labels[part])) == 10


@pytest.mark.parametrize(("samples", "parts", "size"), [(1000, 2, 500), (1000, 3, 334), (1437, 5, 288)])
def test_random_sampling_draws_its_share_without_repeating(samples: int, parts: int, size: int) -> None:
    for part in RandomSampling().split(labels_of(samples), parts, rng()):
        assert len(part) == len(np.unique(part)) == size


@pytest.mark.parametrize(("parts", "published"), [(1, 1.0), (2, 0.75), (5, 0.672), (20, 0.642)])
def test_random_sampling_covers_what_chance_would(parts: int, published: float) -> None:
    split = RandomSampling().split(labels_of(20_000), parts, rng())
    coverage = len(np.unique(np.concatenate(split))) / 20_000
    assert coverage == pytest.approx(1 - (1 - 1 / parts) ** parts, abs=0.01)
    assert coverage == pytest.approx(published, abs=0.01)


def test_random_sampling_nodes_know_nothing_of_each_other() -> None:
    first, second = RandomSampling().split(labels_of(20_000), 2, rng())
    assert len(np.intersect1d(first, second)) / 20_000 == pytest.approx(0.25, abs=0.01)
