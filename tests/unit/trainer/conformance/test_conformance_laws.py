"""The laws of `check`: every wrong component breaks exactly its own, and every registered one keeps all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import tests.support.wrong_components as wrong
from trainer.conformance import processes
from trainer.conformance.check import digest_of, laws_of, on_data, source_of
from trainer.conformance.find import components, kind_of
from trainer.conformance.law import Law, NotApplicable, examine, examine_all
from trainer.conformance.partitioner import Case, cases, smaller
from trainer.conformance.report import CheckRequest, Finding
from trainer.core.failure import Failure
from trainer.launch.threads import threads_in_torch
from trainer.spec.registries import REGISTRIES
from trainer.user_components.source import CODE, ImportFailure, place_in

# Component, the laws that it breaks, and a part of the smallest input and of what was found there.
WRONG: list[tuple[str, set[str], str, str]] = [
    ("Overlaps", {"disjoint"}, "2 samples of 1 class, labels 0 0, 2 parts", "sample"),
    ("DropsRemainder", {"covers"}, "3 samples of 1 class, labels 0 0 0, 2 parts", "2; sample"),
    ("GlobalState", {"seeded"}, "2 samples of 1 class, labels 0 0, 1 part", "global random state"),
    ("MutatesLabels", {"labels"}, "1 sample of 1 class, labels 0, 1 part", "read-only"),
    ("EmptyPart", {"filled"}, "2 samples of 1 class, labels 0 0, 2 parts", "part 1"),
    ("IgnoresSeed", {"random"}, "500 samples", "equal parts"),
    ("OnePartTooFew", {"count"}, "2 samples of 1 class, labels 0 0, 2 parts", "1"),
    ("ShortIndices", {"indices"}, "1 sample of 1 class", "int16"),
    ("OnlyContiguous", {"layout"}, "2 samples of 1 class, labels 0 0, 1 part", "stride"),
    ("DependsOnProcess", {"process"}, "500 samples", "other parts"),
    ("FailsOnOneClass", {"runs"}, "1 sample of 1 class", "mine.py:"),
    ("DistortsPartZero", {"images"}, "part 0 of 1", "changed"),
    ("Sums", {"equals", "averages"}, "2 ranks", "weights differ"),
    ("Totals", {"averages"}, "3 ranks, equal samples in one batch each", "weights differ"),
    ("IgnoresSizes", {"equals"}, "3 ranks, 252 samples, batch 10, each rank with more", "weights differ"),
    ("Deadlocks", {"ends"}, "2 ranks", "rank 0 waits in receive of 6370 numbers from rank 1"),
    ("DeadlocksLater", {"ends"}, "2 ranks", "barrier"),
    ("NeedsWholeBatches", {"ends"}, "1 rank", "mine.py:"),
    ("FailsAtAnEpochsEnd", {"ends"}, "1 rank", "IndexError"),
    ("CallsDiffer", {"ends"}, "2 ranks", "rank"),
    ("ForgetsToSynchronize", {"agree"}, "2 ranks", "ranks 0 and 1 differ"),
    ("DiesOnOneRank", {"ends"}, "2 ranks", "rank 1 was killed by SIGKILL"),
    ("Diverges", {"agree"}, "2 ranks", "ranks 0 and 1 differ"),
    ("NoReplica", {"ends"}, "1 rank", "session.start"),
    ("HalfTheSamples", {"samples", "statistics"}, "1 rank", "30"),
    ("OwnStatistics", {"statistics"}, "3 ranks", "weights differ"),
    ("SendsMore", {"bytes"}, "3 ranks", "50,960"),
    ("DrawsNoise", {"repeats", "averages"}, "1 rank", "weights differ"),
    ("NamesLie", {"names"}, "", "output"),
    ("Unused", {"gradients"}, "6 samples", "unused.weight, model.unused.bias"),
    ("CountsBatches", {"repeats"}, "", ""),
    ("PlainList", {"parameters"}, "", "hidden"),
    ("HidesBatchNorm", {"samples", "norms"}, "", ""),
    ("SharesState", {"splits", "repeats"}, "split before output", ""),
    ("OwnSeed", {"weights"}, "", "output.weight"),
    ("WrongPairs", {"pairs"}, "2 ranks", ""),
    ("Ascends", {"descends"}, "20 steps", ""),
    ("WrongDecay", {"zero"}, "1 step", ""),
    ("WrongCurve", {"curve"}, "1 step", ""),
    ("FixedRate", {"rate"}, "1 step", "param_groups"),
    ("ForgetsState", {"state"}, "1 step", ""),
    ("HidesLayers", {"layers"}, "1 step", "layerwise"),
    ("sums", {"mean", "written"}, "2 samples", ""),
    ("IgnoresReduction", {"sum"}, "2 samples", ""),
    ("WrongGradient", {"gradient"}, "1 sample", ""),
    ("RightAboveOne", {"right"}, "1 sample", "2 to 2"),
    ("TakesAnyShape", {"shapes"}, "1 sample", "none"),
    (
        "GlobalSamples",
        {"again", "process"},
        "16 training and 4 test samples",
        "inputs of training sample 0",
    ),
    ("TestInTraining", {"apart"}, "20 training and 10 test samples", "10 of 10"),
    ("StatesMore", {"stated"}, "20 training and 10 test samples", "20"),
    ("LabelTooHigh", {"labels"}, "20 training and 10 test samples", "2 of training sample 7"),
    ("changes_argument", {"argument"}, "1 input of shape 1×4×4", ""),
    ("changes_nothing", {"changes"}, "64 inputs", "the same"),
    ("global_noise", {"seeded"}, "1 input of shape 1×4×4", "global random state"),
    ("Doubles", {"shape"}, "1 input of shape 1×4×4", "float64"),
]
ELSEWHERE = "trainer.conformance.check._in_another_process"  # takes seconds to start
NEVER_ENDING = {
    "Hangs",
    "Exits",
    "LocksOutside",
    "WaitsForOthers",
}  # see tests/integration/test_check_command.py


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory, with the wrong components in mine.py."""
    path = tmp_path_factory.mktemp("user")
    shutil.copy(wrong.__file__, path / "mine.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CODE, "")
        patch.syspath_prepend(path)
        yield path


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def findings(request: CheckRequest) -> list[Finding]:
    return [*examine_all(laws_of(on_data(request)), Path(request.directory))]


def request_for(directory: Path, name: str) -> CheckRequest:
    found = CheckRequest(
        directory=str(directory), module="mine.py", attribute=name, label=f"mine.py:{name}"
    )
    return found.model_copy(update={"kind": kind_of(source_of(found).load())})


# Classes that are no components, and what the message names.
UNBUILT = {
    "Misspelt": "does not define the method partition",
    "TakesArguments": "annotated attributes.*`share: int",
}


@pytest.mark.slow
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


@pytest.mark.parametrize(("name", "named"), UNBUILT.items())
def test_a_class_that_cannot_be_built_is_named(directory: Path, name: str, named: str) -> None:
    with pytest.raises(ImportFailure, match=named):
        findings(request_for(directory, name))


def test_every_wrong_component_is_tested(directory: Path) -> None:
    rest = {name for kind, name in components(directory, "mine.py") if kind} - {each[0] for each in WRONG}
    assert rest == {
        *NEVER_ENDING,
        "Averages",
        "FailsOnOneRank",
        "halves",
        "CallsTorch",
        "CallsTorchOverMpi",
        "OverGloo",
        "WithTheNextRank",
        *UNBUILT,
        "WrapsInDdp",
    }


# Their own tests try the laws of every model and partitioner, in all their forms.
ONE_EACH = {"model": "lenet5", "partitioner": "contiguous"}
REGISTERED = [
    (kind, name)
    for kind, registry in REGISTRIES.items()
    for name in registry.entries
    if ONE_EACH.get(kind, name) == name
    if kind != "dataset" or not registry.parse(name).files  # those that need no download
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=[":".join(each) for each in REGISTERED])
def test_a_registered_component_keeps_all_laws(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ELSEWHERE, digest_of)
    found = findings(CheckRequest(kind=kind, registered=name, label=name))
    assert [finding for finding in found if finding.status == "failed"] == []
    assert all(finding.reason for finding in found if finding.status in ("skipped", "note"))
    assert name == "fault_injection" or {finding.status for finding in found} != {"skipped"}
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


def test_libraries_in_the_directory_of_a_component_are_not_its_code(tmp_path: Path) -> None:
    library = str(tmp_path / ".venv" / "lib" / "site-packages" / "library.py")
    frames = [(library, 1), (str(tmp_path / "mine.py"), 2)]
    assert place_in(frames, tmp_path) == "mine.py:2"


def test_inputs_that_do_not_apply_are_not_counted() -> None:
    def test(case: Case) -> None:
        if case.parts == 1:
            raise NotApplicable("of one part")

    inputs = [Case(1, 1, 1), Case(2, 1, 1), Case(2, 1, 2)]
    assert examine(Law("law", "it holds", test, inputs), Path()).inputs == 1
    none = examine(Law("law", "it holds", test, inputs[:2]), Path())
    assert (none.status, none.reason) == ("skipped", "of one part")


def test_all_inputs_of_a_list_are_tried_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.conformance.law.LAW_S", 0.0)
    inputs = [Case(1, 1, 1), Case(2, 1, 1), Case(3, 1, 1)]
    assert examine(law(lambda case: case.samples == 3, inputs), Path()).status == "failed"
    assert examine(law(lambda case: case.samples == 3, iter(inputs)), Path()).status == "ok"


def test_laws_after_an_essential_one_that_fails_are_not_tried() -> None:
    first = replace(law(lambda case: True), essential=True)
    assert [each.status for each in examine_all([first, law(lambda case: False)], Path())] == [
        "failed",
        "skipped",
    ]
    second = law(lambda case: True)
    assert [each.status for each in examine_all([second, second], Path())] == ["failed", "failed"]


# Declarations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "law", "equals"),
    [("strategy", "one_shot", "equals", "all_reduce"), ("optimizer", "momentum", "curve", "sgd")],
)
def test_what_a_component_must_equal_can_be_given(kind: str, name: str, law: str, equals: str) -> None:
    request = CheckRequest(kind=kind, registered=name, label=name)
    status = {
        given: next(
            each.status
            for each in findings(request.model_copy(update={"equals": given}))
            if each.law == law
        )
        for given in ("", equals)
    }
    assert status == {"": "skipped", equals: "failed"}


@pytest.mark.slow
def test_a_component_that_declares_nothing_is_shown_what_it_could(directory: Path) -> None:
    (declared,) = (each for each in findings(request_for(directory, "halves")) if each.law == "declared")
    assert declared.status == "note"
    assert "disjoint = True and covers = True" in declared.reason
    (equal,) = (each for each in findings(request_for(directory, "Averages")) if each.law == "equals")
    assert equal.status == "note"
    assert "all_reduce" in equal.reason


def test_equal_weights_on_two_ranks_alone_are_no_advice(directory: Path) -> None:
    (equal,) = (
        each for each in findings(request_for(directory, "WithTheNextRank")) if each.law == "equals"
    )
    assert (equal.status, "all_reduce" in equal.reason) == ("skipped", False)


def test_strategies_for_other_transports_are_trained_over_memory(directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "train", None)
        patch.setattr(processes, "TRIAL_S", 60.0)  # a busy machine takes longer than usual
        found = {each.law: each for each in findings(request_for(directory, "OverGloo"))}
    assert found["ends"].status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CallsTorch", "WrapsInDdp"])
def test_strategies_that_call_torch_are_trained_over_their_own_transport(
    directory: Path, name: str
) -> None:
    found = {each.law: each for each in findings(request_for(directory, name))}
    assert [law for law, each in found.items() if each.status == "skipped"] == []
    assert found["bytes"].status == "note"  # what torch sends by itself is not counted
    assert [each for each in found.values() if each.status == "failed"] == []
    assert found["ends"].inputs == 3


def test_strategies_that_call_torch_over_transports_with_a_launcher_are_left_out(directory: Path) -> None:
    found = findings(request_for(directory, "CallsTorchOverMpi"))
    assert {each.status for each in found} == {"skipped"}
    assert all("lists only mpi" in each.reason for each in found)


def test_an_exception_in_a_process_is_shown_with_file_and_line(directory: Path) -> None:
    ends, *_ = findings(request_for(directory, "FailsOnOneRank"))
    assert (ends.law, ends.status) == ("ends", "failed")
    assert ends.input.startswith("2 ranks")
    assert re.fullmatch(r"mine\.py:\d+: ValueError: no gradient", ends.got)


def test_what_each_process_does_is_shown_if_one_does_not_end(directory: Path) -> None:
    others = psutil.Process().children(recursive=True)
    limited = request_for(directory, "WaitsForOthers").model_copy(update={"limit_s": 60})
    ends, *rest = findings(limited)
    assert (ends.law, ends.status) == ("ends", "failed")
    assert ends.input.startswith("2 ranks")
    assert re.fullmatch(
        r"after 15 s, rank 0 is at mine\.py:\d+, in \w+; rank 1 is at mine\.py:\d+, in \w+", ends.got
    )
    assert {each.status for each in rest} == {"skipped"}
    assert psutil.Process().children(recursive=True) == others


@pytest.mark.parametrize("name", ["hogwild", "async_parameter_server"])
def test_what_is_not_deterministic_need_not_repeat(name: str) -> None:
    (law,) = (
        each
        for each in laws_of(CheckRequest(kind="strategy", registered=name, label=name))
        if each.name == "repeats"
    )
    found = examine(law, Path())
    assert (found.status, found.reason) == ("skipped", "it declares that it is not deterministic")


def test_components_of_a_file_are_those_that_it_defines(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "from torch import nn\n"
        "from trainer.data.base import Partitioner\n"
        "from trainer.data.partitioners.shards import Shards\n"
        "class Base(Partitioner): pass\n"  # abstract, and inherited
        "class Blocks(Base):\n"
        "    def partition(self, labels, parts, rng): ...\n"
        "class Net(nn.Module): pass\n"
        "class _Part(nn.Module): pass\n"
        "class Own(nn.CrossEntropyLoss): pass\n"
        "class Other: pass\n"
        "def blocks(labels, parts): ...\n"
        "def noise(inputs, rng): ...\n"
        "def close(output, target): ...\n"
        "def fit(model, lr): ...\n"
        "def _hidden(labels, parts): ...\n"
    )
    assert [*components(tmp_path, "some.py")] == [
        ("partitioner", "Blocks"),
        ("model", "Net"),
        ("loss", "Own"),
        ("", "Other"),
        ("partitioner", "blocks"),
        ("augmentation", "noise"),
        ("loss", "close"),
        ("", "fit"),  # it may train
    ]


@pytest.mark.slow
def test_a_function_without_a_generator_is_a_deterministic_partitioner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CODE, "")
    (tmp_path / "fixed.py").write_text(
        "import numpy as np\n"
        "def blocks(labels, parts, first: int = 0):\n"
        "    return np.array_split(np.roll(np.arange(len(labels)), first), parts)\n"
        "def ignores(labels, parts, rng): return blocks(labels, parts)\n"
        "def draws(labels, parts, generator):\n"
        "    return np.array_split(generator.permutation(len(labels)), parts)\n"
    )
    found = {}
    for name, given in (("blocks", {"first": 3}), ("ignores", {}), ("draws", {})):
        request = CheckRequest(
            kind="partitioner", directory=str(tmp_path), module="fixed.py", attribute=name, parameters=given
        )
        found[name] = [each for each in findings(request) if each.status == "failed"]
        monkeypatch.setattr(ELSEWHERE, digest_of)  # it has tried one of them
    assert found["blocks"] == found["draws"] == []
    (failed,) = found["ignores"]
    assert failed.law == "random"
    assert "leave out the parameter `rng`" in failed.got
