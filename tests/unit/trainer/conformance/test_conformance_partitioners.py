"""Mistakes of registered partitioners, in all forms: their laws, and errors that name a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from trainer.conformance.law import examine_all
from trainer.conformance.partitioner import Case, cases, laws
from trainer.data.base import DataError, Partitioner
from trainer.spec.registries import PARTITIONERS

# The remedies that the error of an impossible split must name.
REMEDY = r"(use|raise|lower|set|must be|at most) "


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
def test_a_partitioner_keeps_all_laws(partitioner: Partitioner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.conformance.law.LAW_S", 100.0)  # on a busy machine, too
    found = [*examine_all(laws(partitioner), Path())]
    assert [each for each in found if each.status in ("failed", "note")] == []
    without = {name for name in ("disjoint", "covers") if not getattr(partitioner, name)}
    assert {each.law for each in found if each.status == "ok"} == {each.law for each in found} - without
    assert all(each.inputs > 30 for each in found if each.law in ("filled", "seeded", "repeats"))


def test_an_impossible_split_is_an_error_that_names_a_remedy(partitioner: Partitioner) -> None:
    """With fewer samples than parts, it is impossible for all."""
    few = [Case(parts - 1, 10, parts, mix="uneven") for parts in (2, 11, 1000)]
    for case in (*cases(), *few):
        reason = partitioner.validation_error(case.samples, len(np.unique(case.labels)), case.parts)
        reported = None
        try:
            partitioner.partition(case.labels, case.parts, case.rng)
        except DataError as error:
            reported = str(error)
        assert reason in (None, reported)
        assert reported is None or re.search(REMEDY, reported)
        assert case not in few or str(case.parts) in (reason or "")


def test_split_that_is_not_as_declared_is_an_error(partitioner: Partitioner) -> None:
    """Break a valid split in each way that the class excludes."""
    case = Case(1000, 10, 5, mix="uneven")
    samples, valid = case.samples, partitioner.partition(case.labels, case.parts, case.rng)
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
        assert reason in (partitioner.split_error(split, samples, case.parts) or "")
