"""Conformance of partitioners: every registered one obeys the contract of `Partitioner`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from trainer.conformance.law import examine_all
from trainer.conformance.partitioner import cases, laws
from trainer.data.base import DataError, Labels, Partitioner
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


@pytest.mark.slow
def test_a_partitioner_keeps_all_laws(partitioner: Partitioner) -> None:
    found = [*examine_all(laws(partitioner), Path())]
    assert [each for each in found if each.status in ("failed", "note")] == []
    applying = {each.law for each in found if each.status == "ok"}
    expected = {each.law for each in found} - {
        name for name in ("disjoint", "covers") if not getattr(partitioner, name)
    }
    assert applying == expected
    assert all(each.inputs > 30 for each in found if each.law in ("filled", "seeded", "repeats"))


@pytest.mark.slow
def test_an_impossible_split_is_an_error_that_names_a_remedy(partitioner: Partitioner) -> None:
    for case in cases():
        reason = partitioner.validation_error(case.samples, len(np.unique(case.labels)), case.parts)
        reported = None
        try:
            partitioner.partition(case.labels, case.parts, case.rng)
        except DataError as error:
            reported = str(error)
        assert reason in (None, reported)
        assert reported is None or re.search(REMEDY, reported)


@pytest.mark.parametrize("parts", [2, 11, 1000])
def test_parts_are_never_empty(partitioner: Partitioner, parts: int) -> None:
    labels = labels_of(parts - 1)
    reason = partitioner.validation_error(parts - 1, len(np.unique(labels)), parts)
    assert reason
    with pytest.raises(DataError, match=str(parts)) as caught:
        partitioner.partition(labels, parts, rng())
    assert str(caught.value) == reason


# Splits that are not as declared


def test_split_that_is_not_as_declared_is_an_error(partitioner: Partitioner) -> None:
    """Break a valid split in each way that the class excludes."""
    samples, parts = 1000, 5
    valid = partitioner.partition(labels_of(samples), parts, rng())
    first, second, *rest = valid
    elsewhere = np.setdiff1d(second, first)[:1]
    broken = {
        "4 parts": valid[:-1],
        "no sample in part 0": [first[:0], second, *rest],
        "part 0 is of type float64": [first.astype(float), second, *rest],
        "part 1 has 1000": [first, np.append(second, samples), *rest],
        "part 0 has -1": [np.append(first, -1), second, *rest],
        f"part 0 has sample {first[3]} 2 times": [np.append(first, first[3]), second, *rest],
    }
    if partitioner.disjoint:
        broken[f"sample {elsewhere[0]} in parts 0 and 1"] = [np.append(first, elsewhere), second, *rest]
    if partitioner.covers:
        broken["999; sample"] = [np.delete(first, 2), second, *rest]
    for reason, split in broken.items():
        error = partitioner.split_error(split, samples, parts)
        assert error
        assert reason in error
