"""The laws of `check`: every wrong component breaks exactly its own, and every registered one keeps all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.wrong_components as wrong
from trainer.conformance.check import digest_of, laws_of, source_of
from trainer.conformance.find import components, kind_of
from trainer.conformance.law import Failure, Law, NotApplicable, examine, examine_all
from trainer.conformance.partitioner import Case, cases, smaller
from trainer.conformance.report import Finding, Request
from trainer.conformance.threads import threads_in_torch
from trainer.imported.source import CODE
from trainer.spec.registries import REGISTRIES

# Component, the laws that it breaks, and a part of the smallest input and of what was found there.
WRONG: list[tuple[str, set[str], str, str]] = [
    ("Overlaps", {"disjoint"}, "2 samples of 1 class, labels 0 0, 2 parts", "sample"),
    ("DropsRemainder", {"covers"}, "3 samples of 1 class, labels 0 0 0, 2 parts", "2; sample"),
    ("GlobalState", {"seeded"}, "2 samples of 1 class, labels 0 0, 1 part", "global random state"),
    ("MutatesLabels", {"labels"}, "1 sample of 1 class, labels 0, 1 part", "read-only"),
    ("EmptyPart", {"filled"}, "2 samples of 1 class, labels 0 0, 2 parts", "part 1"),
    ("IgnoresSeed", {"random"}, "500 samples", "equal parts"),
    ("OnePartTooFew", {"count"}, "2 samples of 1 class, labels 0 0, 2 parts", "1"),
    ("OnlyContiguous", {"layout"}, "2 samples of 1 class, labels 0 0, 1 part", "stride"),
    ("DependsOnProcess", {"process"}, "500 samples", "other parts"),
    ("FailsOnOneClass", {"runs"}, "1 sample of 1 class", "mine.py:"),
    ("DistortsPartZero", {"images"}, "part 0 of 1", "changed"),
    ("Sums", {"equals"}, "2 ranks", "weights differ"),
    ("Deadlocks", {"ends"}, "2 ranks", "rank 0 waits in receive of 6370 numbers from rank 1"),
    ("CallsDiffer", {"ends"}, "2 ranks", "rank"),
    ("Diverges", {"agree"}, "2 ranks", "ranks 0 and 1 differ"),
    ("HalfTheSamples", {"samples"}, "1 rank", "20"),
    ("SendsMore", {"bytes"}, "3 ranks", "50,960"),
    ("DrawsNoise", {"repeats"}, "1 rank", "weights differ"),
    ("NamesLie", {"names"}, "", "output"),
    ("Unused", {"gradients"}, "6 samples", "unused.weight, model.unused.bias"),
    ("HidesBatchNorm", {"samples", "norms"}, "", ""),
    ("SharesState", {"splits", "repeats"}, "split before output", ""),
    ("OwnSeed", {"weights"}, "", "output.weight"),
    ("WrongPairs", {"pairs"}, "2 ranks", ""),
    ("WrongDecay", {"zero"}, "1 step", ""),
    ("WrongCurve", {"curve"}, "1 step", ""),
    ("FixedRate", {"rate"}, "1 step", "param_groups"),
    ("ForgetsState", {"state"}, "1 step", ""),
    ("HidesLayers", {"layers"}, "1 step", "layerwise"),
    ("sums", {"mean"}, "2 samples", ""),
    ("IgnoresReduction", {"sum"}, "2 samples", ""),
    ("WrongGradient", {"gradient"}, "1 sample", ""),
    ("RightAboveOne", {"right"}, "1 sample", "2 to 2"),
    ("TakesAnyShape", {"shapes"}, "1 sample", "none"),
    ("GlobalSamples", {"again", "process"}, "16 training and 4 test samples", "inputs differ"),
    ("TestInTraining", {"apart"}, "20 training and 10 test samples", "10 of 10"),
    ("StatesMore", {"stated"}, "20 training and 10 test samples", "20"),
    ("LabelTooHigh", {"labels"}, "20 training and 10 test samples", "2 of training sample 7"),
    ("changes_argument", {"argument"}, "1 input of shape 3×8×8", ""),
    ("changes_nothing", {"changes"}, "64 inputs", "the same"),
    ("global_noise", {"seeded"}, "1 input of shape 3×8×8", "global random state"),
    ("Doubles", {"shape"}, "1 input of shape 3×8×8", "float64"),
]
ELSEWHERE = "trainer.conformance.check._in_another_process"  # takes a second to start
NEVER_ENDING = {"Hangs", "Exits", "LocksOutside"}  # see tests/integration/test_check_command.py


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory, with the wrong components in mine.py."""
    path = tmp_path_factory.mktemp("user")
    shutil.copy(wrong.__file__, path / "mine.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CODE, str(path))
        patch.syspath_prepend(path)
        yield path


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def findings(request: Request) -> list[Finding]:
    return [*examine_all(laws_of(request), Path(request.directory))]


def request_for(directory: Path, name: str) -> Request:
    found = Request(directory=str(directory), module="mine.py", attribute=name, label=f"mine.py:{name}")
    return found.model_copy(update={"kind": kind_of(source_of(found).load())})


@pytest.mark.parametrize(("name", "laws", "given", "got"), WRONG, ids=[each[0] for each in WRONG])
def test_a_wrong_component_breaks_its_own_law(
    directory: Path, name: str, laws: set[str], given: str, got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "process" not in laws:
        monkeypatch.setattr(ELSEWHERE, digest_of)
    found = findings(request_for(directory, name))
    failed = [finding for finding in found if finding.status == "failed"]
    assert {finding.law for finding in failed} == laws
    assert given in failed[0].input
    assert got in failed[0].got
    assert failed[0].expected
    assert failed[0].inputs > 0


def test_every_wrong_component_is_tested(directory: Path) -> None:
    rest = {name for _, name in components(directory, "mine.py")} - {each[0] for each in WRONG}
    assert rest == {*NEVER_ENDING, "Averages", "CallsTorch", "OverGloo"}


REGISTERED = [
    (kind, name)
    for kind, registry in REGISTRIES.items()
    for name in registry.entries
    if kind != "dataset" or not registry.parse(name).files  # those that need no download
]


@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=[":".join(each) for each in REGISTERED])
def test_a_registered_component_keeps_all_laws(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ELSEWHERE, digest_of)
    found = findings(Request(kind=kind, registered=name, label=name))
    assert [finding for finding in found if finding.status == "failed"] == []
    assert all(finding.reason for finding in found if finding.status in ("skipped", "note"))
    # What a terminal of 80 columns has room for, beside the number of inputs.
    assert [finding.statement for finding in found if len(finding.statement) > 48] == []


# How laws are tried


def law(breaks: Callable[[Case], bool], inputs: Iterable[Case] | None = None) -> Law[Case]:
    def test(case: Case) -> Failure | None:
        return Failure("", "") if breaks(case) else None

    return Law("law", "it holds", test, cases() if inputs is None else inputs, smaller)


@pytest.mark.parametrize(
    ("breaks", "smallest"),
    [
        (lambda case: case.samples >= 700, Case(700, 1, 1)),
        (lambda case: case.samples >= 700 and case.parts > 4, Case(700, 1, 5)),
        (lambda case: case.samples % 64 > 8 and case.classes > 2 and case.samples > 64, Case(73, 3, 1)),
        (lambda case: case.parts == 3, Case(1, 1, 3)),
    ],
)
def test_the_smallest_input_is_found(breaks: Callable[[Case], bool], smallest: Case) -> None:
    found = examine(law(breaks), Path())
    assert found.status == "failed"
    assert found.input == str(smallest)


def test_an_exception_is_a_failure_with_file_and_line(tmp_path: Path) -> None:
    found = examine(law(lambda case: 1 // 0 > 0), Path(__file__).parent)
    assert found.got.startswith(f"{Path(__file__).name}:")
    assert "ZeroDivisionError" in found.got


def test_inputs_that_do_not_apply_are_not_counted() -> None:
    def test(case: Case) -> None:
        if case.parts == 1:
            raise NotApplicable("of one part")

    inputs = [Case(1, 1, 1), Case(2, 1, 1), Case(2, 1, 2)]
    assert examine(Law("law", "it holds", test, inputs), Path()).inputs == 1
    none = examine(Law("law", "it holds", test, inputs[:2]), Path())
    assert (none.status, none.reason) == ("skipped", "of one part")


def test_laws_after_an_essential_one_that_fails_are_not_tried() -> None:
    first = replace(law(lambda case: True), essential=True)
    assert [each.status for each in examine_all([first, law(lambda case: False)], Path())] == [
        "failed",
        "skipped",
    ]
    second = law(lambda case: True)
    assert [each.status for each in examine_all([second, second], Path())] == ["failed", "failed"]


# Declarations


@pytest.mark.parametrize(
    ("kind", "name", "law", "equals"),
    [("strategy", "one_shot", "equals", "all_reduce"), ("optimizer", "momentum", "curve", "sgd")],
)
def test_what_a_component_must_equal_can_be_given(kind: str, name: str, law: str, equals: str) -> None:
    request = Request(kind=kind, registered=name, label=name)
    status = {
        given: next(
            each.status
            for each in findings(request.model_copy(update={"equals": given}))
            if each.law == law
        )
        for given in ("", equals)
    }
    assert status == {"": "skipped", equals: "failed"}


def test_a_component_that_declares_nothing_is_shown_what_it_could(directory: Path) -> None:
    (declared,) = (each for each in findings(request_for(directory, "halves")) if each.law == "declared")
    assert declared.status == "note"
    assert "disjoint = True and covers = True" in declared.reason
    (equal,) = (each for each in findings(request_for(directory, "Averages")) if each.law == "equals")
    assert equal.status == "note"
    assert "all_reduce" in equal.reason


def test_strategies_for_other_transports_are_trained_over_memory(directory: Path) -> None:
    found = {each.law: each for each in findings(request_for(directory, "OverGloo"))}
    assert found["ends"].status == "ok"
    found = {each.law: each for each in findings(request_for(directory, "CallsTorch"))}
    assert {each.status for each in found.values()} == {"skipped"}
    assert all("torch.distributed" in each.reason for each in found.values())


def test_components_of_a_file_are_those_that_it_defines(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "from torch import nn\n"
        "from trainer.data.base import Partitioner\n"
        "from trainer.data.partitioners.shards import Shards\n"
        "class _Base(Partitioner): pass\n"
        "class Net(nn.Module): pass\n"
        "class _Part(nn.Module): pass\n"
        "class Own(nn.CrossEntropyLoss): pass\n"
        "class Other: pass\n"
    )
    assert [*components(tmp_path, "some.py")] == [("model", "Net"), ("loss", "Own")]
