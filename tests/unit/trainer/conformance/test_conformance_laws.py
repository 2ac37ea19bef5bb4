"""Mistakes of registered components, in all forms of partitioners, and in how laws are tried and told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import Mock

import numpy as np
import pytest
from trainer.conformance.check import digest_of, laws_of, on_data
from trainer.conformance.law import Law, NotApplicable, Note, examine, examine_all
from trainer.conformance.partitioner import Case, cases, smaller
from trainer.conformance.report import CheckRequest

from trainer.conformance import augmentation
from trainer.conformance import partitioner as partitioner_laws
from trainer.core.failure import Failure
from trainer.core.user_code import CODE, place_in
from trainer.data.base import DataError
from trainer.launch.threads import threads_in_torch
from trainer.spec.registries import PARTITIONERS, REGISTRIES

ELSEWHERE = "trainer.conformance.check._in_another_process"  # takes seconds to start
# Kinds whose laws no other file tries on all entries. Of datasets, those that need no download.
REGISTERED = [
    (kind, name)
    for kind in ("optimizer", "loss", "dataset", "augmentation")
    for name in REGISTRIES[kind].entries
    if kind != "dataset" or not REGISTRIES[kind].parse(name).files
]
ROOT = Path()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=[":".join(each) for each in REGISTERED])
def test_a_registered_component_keeps_all_laws(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ELSEWHERE, digest_of)
    laws = laws_of(on_data(CheckRequest(kind=kind, registered=name, label=name)))
    if kind == "augmentation":
        laws = augmentation.laws(REGISTRIES[kind].parse(name), (3, 20, 24))
    found = [*examine_all(laws, ROOT)]
    assert [each for each in found if each.status == "failed"] == []
    assert all(each.reason for each in found if each.status in ("skipped", "note"))
    assert {each.status for each in found} != {"skipped"}


# Partitioners, in all forms

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
    step = 2 if len(request.param) == 1 else 8
    monkeypatch.setattr(partitioner_laws, "cases", lambda: islice(cases(), 0, None, step))
    monkeypatch.setattr("trainer.conformance.law.LAW_S", 100.0)  # on a busy machine, too
    return request.param


def test_a_partitioner_keeps_all_laws(form: dict[str, Any]) -> None:
    partitioner = PARTITIONERS.parse(form)
    found = [*examine_all(partitioner_laws.laws(partitioner), ROOT)]
    assert [each for each in found if each.status in ("failed", "note")] == []
    without = {name for name in ("disjoint", "covers") if not getattr(partitioner, name)}
    assert {each.law for each in found if each.status == "ok"} == {each.law for each in found} - without
    assert all(each.inputs > 5 for each in found if each.law in ("filled", "seeded", "repeats"))


def test_an_impossible_split_is_an_error_that_names_a_remedy(form: dict[str, Any]) -> None:
    """With fewer samples than parts, it is impossible for all."""
    partitioner = PARTITIONERS.parse(form)
    few = [Case(parts - 1, 10, parts, mix="uneven") for parts in (2, 11, 1000)]
    for case in (*partitioner_laws.cases(), *few):
        reason = partitioner.validation_error(case.samples, len(np.unique(case.labels)), case.parts)
        reported = None
        try:
            partitioner.partition(case.labels, case.parts, case.rng)
        except DataError as error:
            reported = str(error)
        assert reason in (None, reported)
        assert reported is None or re.search(REMEDY, reported)
        assert case not in few or str(case.parts) in (reason or "")


# How laws are tried


def law(breaks: Callable[[Case], bool], inputs: Iterable[Case] | None = None) -> Law[Case]:
    def test(case: Case) -> Failure | None:
        return Failure("", "") if breaks(case) else None

    return Law("law", "it holds", test, cases() if inputs is None else inputs, smaller)


def test_the_smallest_input_is_found() -> None:
    for smallest, breaks in (
        (Case(700, 1, 5), lambda case: case.samples >= 700 and case.parts > 4),
        (Case(73, 3, 1), lambda case: case.samples % 64 > 8 and case.classes > 2 and case.samples > 64),
        (Case(1, 1, 3), lambda case: case.parts == 3),
    ):
        found = examine(law(breaks), ROOT)
        assert (found.status, found.input) == ("failed", str(smallest))


def test_a_place_in_users_code_is_in_no_library(tmp_path: Path) -> None:
    library = str(tmp_path / ".venv" / "lib" / "site-packages" / "library.py")
    assert place_in([(library, 1), (str(tmp_path / "mine.py"), 2)], tmp_path) == "mine.py:2"


THREE = [Case(1, 1, 1), Case(2, 1, 1), Case(2, 1, 2)]


def test_what_is_told_of_several_inputs() -> None:
    """The number of those that apply, the reason of the first that does not, and the last note."""

    def test(case: Case) -> Note | None:
        if case.parts == 1:
            raise NotApplicable(f"{case.samples} in one part")
        return Note("two samples") if case.samples == 2 else None

    def told(*inputs: Case) -> tuple[str, int, str]:
        found = examine(Law("law", "it holds", test, inputs, otherwise="there is none"), ROOT)
        return found.status, found.inputs, found.reason

    assert told(*THREE[:2]) == ("skipped", 0, "1 in one part")
    assert told(*THREE, Case(3, 1, 2)) == ("note", 2, "two samples")
    assert told(Case(3, 1, 2)) == ("ok", 1, "")
    assert told() == ("skipped", 0, "there is none")


def test_all_inputs_of_a_list_are_tried_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.conformance.law.LAW_S", 0.0)
    assert examine(law(lambda case: case.parts == 2, THREE), ROOT).status == "failed"
    assert examine(law(lambda case: case.parts == 2, iter(THREE)), ROOT).status == "ok"


def test_laws_after_an_essential_one_that_fails_are_not_tried() -> None:
    never, always = law(lambda case: False), law(lambda case: True)
    essential = replace(always, essential=True)
    for laws, statuses in (
        ([essential, never], ["failed", "skipped"]),
        ([always, always], ["failed", "failed"]),
        ([replace(never, essential=True), always], ["ok", "failed"]),
    ):
        assert [each.status for each in examine_all(laws, ROOT)] == statuses


def test_a_digest_depends_on_the_samples_of_each_part() -> None:
    valid, splits = Mock(return_value=None), ([[0, 1], [2]], [[0], [1, 2]], [[0, 1], [3]])
    made = [Mock(validation_error=valid, partition=Mock(return_value=parts)) for parts in splits]
    assert len({*map(partitioner_laws.digest, made)}) == len(splits)


@pytest.mark.slow
def test_another_process_must_give_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE, "")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (tmp_path / "mine.py").write_text(
        "import os\nimport numpy as np\n"
        "def depends(labels, parts):\n"
        "    order = np.roll(np.arange(len(labels)), int(os.environ['PYTHONHASHSEED']))\n"
        "    return np.array_split(order, parts)\n"
    )
    place = {"directory": str(tmp_path), "module": "mine.py", "attribute": "depends"}
    laws = laws_of(CheckRequest(kind="partitioner", **place))
    (found,) = examine_all((each for each in laws if each.name == "process"), tmp_path)
    assert found.status == "failed"
