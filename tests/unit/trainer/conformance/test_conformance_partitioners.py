"""Mistakes of registered partitioners, in all forms: their laws, and errors that name a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from trainer.conformance import partitioner as module
from trainer.conformance.law import examine_all
from trainer.conformance.partitioner import Case, cases
from trainer.data.base import DataError
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
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each form, tried on half of the training sets, and on fewer with another choice than the default."""
    monkeypatch.setattr(
        module, "cases", lambda: islice(cases(), 0, None, 2 if len(request.param) == 1 else 8)
    )
    monkeypatch.setattr("trainer.conformance.law.LAW_S", 100.0)  # on a busy machine, too
    return request.param


def test_a_partitioner_keeps_all_laws(form: dict[str, Any]) -> None:
    partitioner = PARTITIONERS.parse(form)
    found = [*examine_all(module.laws(partitioner), Path())]
    assert [each for each in found if each.status in ("failed", "note")] == []
    without = {name for name in ("disjoint", "covers") if not getattr(partitioner, name)}
    assert {each.law for each in found if each.status == "ok"} == {each.law for each in found} - without
    assert all(each.inputs > 5 for each in found if each.law in ("filled", "seeded", "repeats"))


def test_an_impossible_split_is_an_error_that_names_a_remedy(form: dict[str, Any]) -> None:
    """With fewer samples than parts, it is impossible for all."""
    partitioner = PARTITIONERS.parse(form)
    few = [Case(parts - 1, 10, parts, mix="uneven") for parts in (2, 11, 1000)]
    for case in (*module.cases(), *few):
        reason = partitioner.validation_error(case.samples, len(np.unique(case.labels)), case.parts)
        reported = None
        try:
            partitioner.partition(case.labels, case.parts, case.rng)
        except DataError as error:
            reported = str(error)
        assert reason in (None, reported)
        assert reported is None or re.search(REMEDY, reported)
        assert case not in few or str(case.parts) in (reason or "")


def test_a_split_that_breaks_a_rule_is_an_error() -> None:
    partitioner, samples = PARTITIONERS.parse("random_partition"), 1000
    first, second, *rest = valid = np.array_split(np.arange(samples), 5)
    assert partitioner.split_error(valid, samples, 5) is None
    for reason, split in {
        "4 parts": valid[:-1],
        "no sample in part 0": [first[:0], second, *rest],
        "part 0 is of type float64": [first.astype(float), second, *rest],
        "part 1 has 1000": [first, np.append(second, samples), *rest],
        "part 0 has -1": [np.append(first, -1), second, *rest],
        "part 0 has sample 3 2 times": [np.append(first, 3), second, *rest],
        "sample 200 in parts 0 and 1": [np.append(first, 200), second, *rest],
        "999; sample": [np.delete(first, 2), second, *rest],
    }.items():
        assert reason in (partitioner.split_error(split, samples, 5) or "")
