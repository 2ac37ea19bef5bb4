"""Mistakes in the laws of strategies, and registered strategies that are not what they declare."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from trainer.conformance.check import laws_of
from trainer.conformance.law import examine_all
from trainer.conformance.report import CheckRequest, Finding

import tests.support.wrong_components as wrong
from trainer.conformance import strategy
from trainer.core.events import Event
from trainer.core.user_code import CODE
from trainer.launch import processes
from trainer.launch.threads import threads_in_torch
from trainer.spec.registries import STRATEGIES

# Component, the laws that it breaks, and a pattern of the smallest input and of what was found there.
WRONG: list[tuple[str, set[str], str]] = [
    ("sums", {"equals", "averages"}, "2 ranks.*weights differ"),
    ("ignores sizes", {"equals"}, "3 ranks, 252 samples, batch 10, each rank with more.*weights differ"),
    ("halves", {"one", "equals"}, "1 rank.*weights differ"),
    ("stays", {"finite"}, "1 rank.*the initial ones"),
    ("diverges", {"agree"}, "2 ranks.*ranks 0 and 1 differ"),
    ("takes half the samples", {"samples"}, "1 rank.*30"),
    ("sends more", {"bytes"}, "3 ranks.*50,960"),
    ("draws noise", {"repeats"}, "1 rank.*weights differ"),
    ("never starts", {"ends"}, "1 rank.*session.start"),
    ("needs whole batches", {"ends"}, "1 rank.*mine.py:"),
    ("deadlocks", {"ends"}, "2 ranks.*rank 0 waits in receive of 6370 numbers from rank 1"),
    ("OwnStatistics", {"statistics"}, "3 ranks.*weights differ"),
    ("FailsOnOneRank", {"ends"}, r"2 ranks.*: mine\.py:\d+: ValueError: no gradient$"),
    ("DiesOnOneRank", {"ends"}, "2 ranks.*rank 1 was killed by SIGKILL"),
]


@pytest.fixture(scope="module", autouse=True)
def _known_references() -> Iterator[None]:
    """Train each registered strategy that others are compared with once."""
    known: dict[Any, Any] = {}
    reference = strategy.Trainings.reference

    def once(trainings: strategy.Trainings, *key: Any) -> Any:
        if key not in known:
            known[key] = reference(trainings, *key)
        return known[key]

    with pytest.MonkeyPatch.context() as patch, threads_in_torch(1):
        patch.setattr(strategy.Trainings, "reference", once)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory, with the wrong components in mine.py."""
    path = tmp_path_factory.mktemp("user")
    shutil.copy(wrong.__file__, path / "mine.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CODE, "")
        patch.syspath_prepend(path)
        yield path


def findings(request: CheckRequest, *tried: str) -> dict[str, Finding]:
    """What the laws find, by their names. tried: which laws; none: all."""
    laws = (law for law in laws_of(request) if not tried or law.name in tried)
    return {each.law: each for each in examine_all(laws, Path(request.directory))}


def request_for(directory: Path, name: str) -> CheckRequest:
    """A check of a component, or of what is wrong with one."""
    how = {} if name[0].isupper() else {"how": name}
    place = {"directory": str(directory), "module": "mine.py", "attribute": "Wrong" if how else name}
    return CheckRequest(kind="strategy", label="mine.py", parameters=how, **place)


@pytest.mark.parametrize(("name", "laws", "text"), WRONG, ids=[each[0].replace(" ", "-") for each in WRONG])
def test_a_wrong_strategy_breaks_its_laws(directory: Path, name: str, laws: set[str], text: str) -> None:
    others = psutil.Process().children(recursive=True)
    found = findings(request_for(directory, name), "ends", *laws)
    failed = [each for each in found.values() if each.status == "failed"]
    assert {each.law for each in failed} == laws
    assert re.search(text, f"{failed[0].input}: {failed[0].got}")
    assert psutil.Process().children(recursive=True) == others


OF_TORCH = ("ddp", "zero1", "zero2", "fsdp", "pipeline_torch")
BETWEEN_PROCESSES = {
    name
    for name in STRATEGIES.entries
    if "memory" not in STRATEGIES.load(name).transports or STRATEGIES.load(name).forks
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in OF_TORCH)) for name in STRATEGIES.entries],
)
def test_a_registered_strategy_keeps_all_laws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank and three, or on two. Between processes, which take long to start, only once."""
    request = CheckRequest(kind="strategy", registered=name, label=name, limit_s=400)  # of a busy machine
    between_processes, deterministic = name in BETWEEN_PROCESSES, STRATEGIES.load(name).deterministic
    numbers = (2, 3) if between_processes else (1, 3, 2)
    monkeypatch.setattr(strategy, "RANKS", [strategy.Ranks(number) for number in numbers])
    monkeypatch.setattr(strategy, "TRAINED", 1 if between_processes else 2)
    tried = {law.name for law in laws_of(request)}
    tried -= {"repeats"} if between_processes and deterministic else set()
    found = findings(request, *tried)
    assert [each for each in found.values() if each.status == "failed"] == []
    assert all(each.reason for each in found.values() if each.status in ("skipped", "note"))
    assert (name == "fault_injection") == ({each.status for each in found.values()} == {"skipped"})
    assert deterministic or found["repeats"].reason == "it declares that it is not deterministic"


# What a strategy could declare, and what it is compared with


def test_what_a_strategy_must_equal_can_be_given_and_could_be_declared(directory: Path) -> None:
    """The option comes before what it declares."""
    for name, given, status in (
        ("one_shot", "", "skipped"),
        ("one_shot", "all_reduce", "failed"),
        ("all_gather", "serial", "failed"),
    ):
        request = CheckRequest(kind="strategy", registered=name, label=name, equals=given)
        assert findings(request, "ends", "equals")["equals"].status == status
    for name, could in (("Averages", True), ("takes the next rank's", False)):
        equal = findings(request_for(directory, name), "ends", "equals")["equals"]
        assert (equal.status, "all_reduce" in equal.reason) == ("note" if could else "skipped", could)


# Where the ranks are


def test_strategies_that_call_torch_are_trained_over_their_own_transport_or_left_out(
    directory: Path,
) -> None:
    found = findings(request_for(directory, "CallsTorch"), "ends", "samples", "agree", "one", "bytes")
    assert found["ends"].inputs == 3
    assert found.pop("bytes").status == "note"  # what torch sends by itself is not counted
    assert {each.status for each in found.values()} <= {"ok", "note"}
    skipped = findings(request_for(directory, "CallsTorchOverMpi"), "ends")["ends"]  # it needs a launcher
    assert (skipped.status, "lists only mpi" in skipped.reason) == ("skipped", True)


def test_the_first_cause_of_a_failure_is_a_death_then_what_is_about_no_other_rank() -> None:
    def failed(time: float, cause: str, peer: bool) -> list[Event]:
        return [Event(time, "", 0, "", "failed", {"cause": cause, "peer": peer, "traceback": ""})]

    lost, late, early = failed(1.0, "lost", True), failed(3.0, "late", False), failed(2.0, "early", False)
    ended = [Event(0.0, "", 0, "", "result", {})]
    for codes, events, cause in (
        ([0, 0], [ended, ended], None),
        ([1, 1, 1], [lost, late, early], "early"),
        ([1, 0], [lost, ended], "lost"),
        ([1, -9, 1], [early, [], lost], "rank 1 was killed by SIGKILL"),
        ([1, 0], [early, []], "rank 1 ended with exit code 0"),
    ):
        assert processes._failure(codes, events, None) == cause
