"""Conformance of partitioners: every registered one obeys the contract of `Partitioner`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from trainer.data.base import DataError, Indices, Labels, Partitioner
from trainer.spec.registries import PARTITIONERS

CLASSES = 10
# The remedies that the error of an impossible split must name.
REMEDY = r"(use|raise|lower|set|must be|at most) "


def labels_of(samples: int) -> Labels:
    """Labels of uneven frequency, as in real data."""
    return np.sqrt(np.random.default_rng(9).integers(0, CLASSES**2, samples)).astype(np.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def forms() -> Iterator[dict[str, Any]]:
    """Each partitioner with its defaults, then with every other choice of its parameters."""
    for name in PARTITIONERS.entries:
        yield {"name": name}
        for parameter, field in PARTITIONERS.load(name).model_fields.items():
            choices: tuple[Any, ...] = ()
            if get_origin(field.annotation) is Literal:
                choices = get_args(field.annotation)
            elif field.annotation is bool and parameter != "reshuffle":
                choices = (True, False)
            yield from ({"name": name, parameter: choice} for choice in choices if choice != field.default)


@pytest.fixture(params=forms(), ids=lambda form: " ".join(map(str, form.values())))
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
        assert len(np.unique(part)) == len(part)


def assert_as_declared(partitioner: Partitioner, parts: list[Indices], samples: int) -> None:
    holders = np.zeros(samples, int)
    for part in parts:
        np.add.at(holders, part, 1)  # counts repetitions within a part, too
    if partitioner.disjoint:
        assert holders.max() == 1
    if partitioner.covers:
        assert holders.min() >= 1
    assert partitioner.split_error(parts, samples, len(parts)) is None


def assert_valid_or_explained(partitioner: Partitioner, labels: Labels, parts: int) -> None:
    """Check that a split is as declared, or that the error names a remedy and equals `validation_error`."""
    reason = partitioner.validation_error(len(labels), len(np.unique(labels)), parts)
    try:
        split = partitioner.partition(labels, parts, rng())
    except DataError as error:
        reported = str(error)
    else:
        assert reason is None
        assert_valid(split, parts, len(labels))
        assert_as_declared(partitioner, split, len(labels))
        return
    assert reason in (None, reported)
    assert re.search(REMEDY, reported)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 64, 999, 1000])
@pytest.mark.parametrize("samples", [1000, 1437])
def test_parts_are_valid_and_as_declared(partitioner: Partitioner, samples: int, parts: int) -> None:
    assert_valid_or_explained(partitioner, labels_of(samples), parts)


@pytest.mark.parametrize(("samples", "parts"), [(1437, 5), (1437, 20), (60_000, 1000)])
def test_usual_splits_are_possible(partitioner: Partitioner, samples: int, parts: int) -> None:
    split = partitioner.partition(labels_of(samples), parts, rng())
    assert_valid(split, parts, samples)
    assert_as_declared(partitioner, split, samples)


@pytest.mark.parametrize("parts", [2, 11, 1000])
def test_parts_are_never_empty(partitioner: Partitioner, parts: int) -> None:
    labels = labels_of(parts - 1)
    reason = partitioner.validation_error(parts - 1, len(np.unique(labels)), parts)
    assert reason
    with pytest.raises(DataError, match=str(parts)) as caught:
        partitioner.partition(labels, parts, rng())
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "labels", [np.zeros(50, np.int64), np.arange(50) // 49, np.arange(50)], ids=["one", "rare", "all"]
)
@pytest.mark.parametrize("parts", [1, 4, 50])
def test_classes_of_any_frequency(partitioner: Partitioner, labels: Labels, parts: int) -> None:
    assert_valid_or_explained(partitioner, labels, parts)


def test_all_ranks_compute_the_same_split(partitioner: Partitioner) -> None:
    labels = labels_of(500)
    np.random.seed(1)
    first = partitioner.partition(labels, 5, rng(3))
    np.random.seed(2)  # neither global state nor earlier calls matter
    partitioner.partition(labels, 6, rng(4))
    again = partitioner.partition(labels, 5, rng(3))
    for ours, theirs in zip(first, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_seed_changes_the_split_of_random_partitioners(partitioner: Partitioner) -> None:
    first, second = (partitioner.partition(labels_of(500), 5, rng(seed)) for seed in (1, 2))
    same = [np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(first, second, strict=True)]
    assert all(same) is not partitioner.random


def test_only_random_partitioners_reshuffle(partitioner: Partitioner) -> None:
    again = PARTITIONERS.parse({**PARTITIONERS.dump(partitioner), "reshuffle": True})
    reason = again.validation_error(1437, CLASSES, 5)
    assert reason is None if partitioner.random else reason and "reshuffle must be false" in reason


def test_labels_are_not_modified(partitioner: Partitioner) -> None:
    labels = labels_of(500)
    before = labels.copy()
    labels.flags.writeable = False
    partitioner.partition(labels, 5, rng())
    np.testing.assert_array_equal(labels, before)


# Splits that are not as declared


def test_split_that_is_not_as_declared_is_an_error(partitioner: Partitioner) -> None:
    """Break a valid split in each way that the class excludes."""
    samples, parts = 1000, 5
    valid = partitioner.partition(labels_of(samples), parts, rng())
    first, second, *rest = valid
    elsewhere = np.setdiff1d(second, first)[:1]
    broken = {
        "4 parts": valid[:-1],
        "part 0 is empty": [first[:0], second, *rest],
        "part 0 is not a one-dimensional array of integers": [first.astype(float), second, *rest],
        "part 1 has index 1000": [first, np.append(second, samples), *rest],
        "part 0 has index -1": [np.append(first, -1), second, *rest],
        f"part 0 has sample {first[3]} 2 times": [np.append(first, first[3]), second, *rest],
    }
    if partitioner.disjoint:
        broken[f"sample {elsewhere[0]} is in parts 0 and 1"] = [np.append(first, elsewhere), second, *rest]
    if partitioner.covers:
        broken["lacks 1 samples"] = [np.delete(first, 2), second, *rest]
    for reason, split in broken.items():
        error = partitioner.split_error(split, samples, parts)
        assert error
        assert reason in error


# Distortion of images


def test_images_are_distorted_as_declared_and_never_on_the_first_node(partitioner: Partitioner) -> None:
    images = rng().standard_normal((7, 3, 6, 5)).astype(np.float32)
    before = images.copy()
    images.flags.writeable = False
    for rank, parts in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (999, 1000)]:
        seen = partitioner.transform_images(images, rank, parts, rng(5))
        assert seen.shape == images.shape
        assert seen.dtype == images.dtype
        assert np.isfinite(seen).all()
        assert np.array_equal(seen, images) is not (partitioner.transforms_images and rank > 0)
        np.testing.assert_array_equal(partitioner.transform_images(images, rank, parts, rng(5)), seen)
    np.testing.assert_array_equal(images, before)
