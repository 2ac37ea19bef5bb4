"""Mistakes in the laws of partitioners, in what is refused of them, and in the registered ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.laws import assert_faults, declaring, failing, findings, imported
from trainer.components import partitioner as module
from trainer.components.facts import Source
from trainer.components.kind import NOWHERE, Few, On
from trainer.components.partitioner import Case, ImportedPartitioner, PartitionerKind, cases
from trainer.data.base import DataError, Partitioner
from trainer.spec.registries import PARTITIONERS


def partitioners(split: Callable[..., Any], **members: Any) -> PartitionerKind:
    """A partitioner to be tried. members: what it declares beside disjoint and covers."""

    def partition(self: Partitioner, labels: Any, parts: int, rng: Any) -> Any:
        self.check(labels, parts)
        return split(labels, parts, rng)

    own = declaring(Partitioner, **{"disjoint": True, "covers": True, "partition": partition, **members})()
    return PartitionerKind(own, On(Source(folder=str(Path(__file__).parent))))


def halves(labels: Any, parts: int, rng: Any) -> list[Any]:
    return np.array_split(rng.permutation(len(labels)), parts)


def blocks(labels: Any, parts: int, rng: Any, first: int = 0) -> list[Any]:
    return np.array_split(np.roll(np.arange(len(labels)), first), parts)


def changed_parts(change: Callable[[Any], Any]) -> PartitionerKind:
    return partitioners(lambda *of: [*map(change, halves(*of))])


def distorting(change: Callable[..., Any], **members: Any) -> PartitionerKind:
    given = {"transforms_images": True, "transform_images": lambda self, *of: change(*of), **members}
    return partitioners(halves, **given)


FAULTS: dict[str, PartitionerKind] = {
    "runs: 1 sample .*: test_partitioner.py:[0-9]+: ZeroDivisionError": partitioners(
        lambda labels, *_: 1 / (len(np.unique(labels)) - 1)
    ),
    "possible: DataError: ": partitioners(halves, validation_error=lambda _, samples, *of: samples > 1000),
    "count: 2 parts, .*1 parts": partitioners(lambda x, n, rng: halves(x, max(1, n - 1), rng)),
    "indices: 1 sample .*int16": changed_parts(lambda part: part.astype("i2")),
    "indices: 1 sample .*part 0 is of type list, not an array": changed_parts(list),
    "indices: 1 sample .*0 to 0: part 0 has 1": changed_parts(lambda part: part + 1),
    "indices: 1 sample .*part 0 has -1": changed_parts(lambda part: part - 1),
    "filled: 2 samples of 1 class, labels 0 0, 2 parts.*part 1": partitioners(
        lambda labels, parts, _: [np.flatnonzero(labels % parts == part) for part in range(parts)]
    ),
    "repeats: 1 part.*2 times": changed_parts(lambda part: np.append(part, part[0])),
    "disjoint: 2 samples of 1 class, labels 0 0, 2 parts.*parts 0 and 1": changed_parts(
        lambda part: np.union1d(part, [0])
    ),
    "covers: 3 samples of 1 class, labels 0 0 0, 2 parts.*: 3 samples in parts: 2; sample": partitioners(
        lambda labels, parts, rng: [part[: len(labels) // parts] for part in halves(labels, parts, rng)]
    ),
    "seeded: labels 0 0, 1 part.*global random state": partitioners(lambda *of: halves(*of[:2], np.random)),
    "random: 500 samples.*equal parts; declare random = False": partitioners(blocks),
    "random: 500 samples.*other parts": partitioners(halves, random=False),
    "labels: 1 sample of 1 class, labels 0, 1 part.*read-only": partitioners(
        lambda x, *of: x.sort() or blocks(x, *of), random=False
    ),
    "layout: labels 0 0, 1 part.*stride": partitioners(
        lambda labels, *of: blocks(labels, *of, first=not labels.flags.c_contiguous), random=False
    ),
    "reshuffle: none": partitioners(blocks, random=False, validation_error=lambda *_: None),
    "images: part 0 of 1: unchanged images of the first part: changed": distorting(lambda x, *_: x + 1),
    "images: part 1 of 2: changed images as .*: unchanged": distorting(lambda x, *_: x),
    "images: part 1 of 2: unchanged images as .*: changed": distorting(
        lambda x, rank, *_: x + rank, transforms_images=False
    ),
}
NEITHER = {"disjoint": False, "covers": False}
SOUND: list[tuple[str, str, str, PartitionerKind]] = [
    ("declared", "note", "disjoint = True and covers = True", partitioners(halves, **NEITHER)),
    # That all samples are in one part shows nothing.
    ("declared", "ok", "", partitioners(halves, **NEITHER, validation_error=lambda *of: of[-1] > 1)),
    # The largest of the usual training sets has 60,000 samples.
    ("indices", "ok", "", changed_parts(lambda part: part.astype("u2"))),
]


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, {"declared", "process"}, SOUND)


# The remedies that the error of an impossible split must name.
REMEDY = r"(use|raise|lower|set|must be|at most) "


def forms() -> Iterator[dict[str, Any]]:
    """Each partitioner with its defaults, then with every other choice of its parameters."""
    for name in PARTITIONERS.entries:
        yield {"name": name}
        for parameter, field in PARTITIONERS.load(name).model_fields.items():
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            if field.annotation is bool and parameter != "reshuffle":
                choices = (True, False)
            yield from ({"name": name, parameter: choice} for choice in choices if choice != field.default)


@pytest.fixture(params=forms(), ids=lambda form: " ".join(map(str, form.values())))
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each form, tried on half of the training sets, and on fewer with another choice than the default."""
    step = 2 if len(request.param) == 1 else 8
    fewer = cases()[::step]
    monkeypatch.setattr(module, "cases", lambda: fewer)
    monkeypatch.setattr("trainer.components.examine.SEARCH_S", 0.05)
    return request.param


def test_a_partitioner_keeps_all_laws(form: dict[str, Any]) -> None:
    partitioner = PARTITIONERS.parse(form)
    found = findings(PartitionerKind(partitioner)).values()
    assert [each for each in found if each.status in ("failed", "note")] == []
    without = {name for name in ("disjoint", "covers") if not getattr(partitioner, name)}
    assert {each.law for each in found if each.status == "ok"} == {each.law for each in found} - without
    assert all(each.inputs > 5 for each in found if each.law in ("filled", "seeded", "repeats"))


def test_an_impossible_split_is_an_error_that_names_a_remedy(form: dict[str, Any]) -> None:
    """With fewer samples than parts, it is impossible for all."""
    partitioner = PARTITIONERS.parse(form)
    few = [Case(samples=parts - 1, classes=10, parts=parts, mix="uneven") for parts in (2, 11, 1000)]
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


def loaded(called: Any) -> PartitionerKind:
    """A user's partitioner for a run of 8 samples on 2 ranks."""
    few = Few(torch.ones(8, 4), torch.zeros(8), np.zeros(8, np.int64))
    kind = PartitionerKind(PartitionerKind.adapt(called, {}, NOWHERE), On(few=few, ranks=2, loading=True))
    kind.load()
    return kind


def test_partitioners_that_do_not_split_the_samples_of_a_run_are_refused() -> None:
    cases = {
        "global random state | rng": lambda labels, parts, rng: [*np.random.permutation(8).reshape(2, 4)],
        "1 parts; expected: 2 parts": lambda labels, parts, rng: [np.arange(len(labels))],
        "DataError: ": lambda labels, parts: PARTITIONERS.parse("random_sampling").check(labels[:1], parts),
    }
    assert failing(cases, loaded) == {}
    with pytest.raises(ZeroDivisionError):
        loaded(lambda labels, parts: 1 / 0)
    facts = loaded(lambda labels, parts: np.array_split(np.arange(len(labels)), parts)).facts()
    assert {*facts.values()} == {False}


def test_a_function_takes_a_generator_as_its_third_parameter() -> None:
    takes = (lambda labels, parts, generator: 0, lambda labels, parts, rng=None: 0)
    others = (lambda labels, parts, first=0: 0, lambda labels, parts: 0)
    assert [module.takes_generator(called) for called in (*takes, *others)] == [True, True, False, False]


def test_a_users_partitioner_names_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = imported(ImportedPartitioner, {"disjoint": True})
    assert (splits.disjoint, splits.covers, splits.random) == (True, False, True)
    monkeypatch.setattr(Source, "load", lambda self: lambda labels, parts: 1 / 0)
    with pytest.raises(DataError, match=r"it: .*ZeroDivisionError"):
        splits.partition(np.zeros(4, np.int64), 2, np.random.default_rng(0))


def test_a_digest_depends_on_the_samples_of_each_part() -> None:
    valid, splits = Mock(return_value=None), ([[0, 1], [2]], [[0], [1, 2]], [[0, 1], [3]])
    made = [Mock(validation_error=valid, partition=Mock(return_value=parts)) for parts in splits]
    assert len({PartitionerKind(each).digest() for each in made}) == len(splits)
