"""Mistakes in the laws of strategies, in what is refused and known of them, and in registered ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tests.support.wrong_components as wrong
from tests.support.laws import declaring, failing, findings, imported
from trainer.components import strategy
from trainer.components.facts import Source
from trainer.components.kind import NOWHERE, On
from trainer.components.strategy import ImportedStrategy, Ranks, StrategyKind
from trainer.core.strategy import Strategy
from trainer.spec.registries import STRATEGIES
from trainer.strategies.local_sgd import LocalSGD

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
    ("FailsOnOneRank", {"ends"}, r"2 ranks[^:]*: mine\.py:\d+: ValueError: no gradient$"),
    ("DiesOnOneRank", {"ends"}, "2 ranks.*rank 1 was killed by SIGKILL"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory, with the wrong components in mine.py."""
    path = tmp_path_factory.mktemp("user")
    shutil.copy(wrong.__file__, path / "mine.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path


def users(directory: Path, name: str, **parameters: Any) -> StrategyKind:
    """A component of mine.py, or what is wrong with one."""
    if not name[0].isupper():
        name, parameters = "Wrong", {"how": name}
    source = Source(folder=str(directory), module="mine.py", attribute=name)
    own = StrategyKind.adapt(source.load(), parameters, source)
    return StrategyKind(own, On(source=source, parameters=parameters))


@pytest.mark.parametrize(("name", "laws", "text"), WRONG, ids=[each[0].replace(" ", "-") for each in WRONG])
def test_a_wrong_strategy_breaks_its_laws(directory: Path, name: str, laws: set[str], text: str) -> None:
    others = psutil.Process().children(recursive=True)
    found = findings(users(directory, name), "ends", *laws)
    failed = [each for each in found.values() if each.status == "failed"]
    assert {each.law for each in failed} == laws
    assert re.search(text, f"{failed[0].input}: {failed[0].got}")
    assert psutil.Process().children(recursive=True) == others


# What is wrong of Overlaps, the law that it breaks, and what is found at the lines with these comments.
MISUSES = [
    ("order", "ends", r"rank 0 calls iall_reduce\(mean\) of 10 .* {0 starts} while .* 6360 .* {1 starts}$"),
    ("writes", "requests", "rank [01] writes to .* iall_reduce started at {0 starts} at {writes}, before"),
    ("reads", "requests", "rank [01] reads .* iall_reduce started at {0 starts} at {reads}, before its"),
    ("forgets", "ends", "rank 1 never waits for the iall_reduce started at {second}$"),
]


@pytest.mark.parametrize(("how", "law", "text"), MISUSES, ids=[each[0] for each in MISUSES])
def test_a_wrong_use_of_requests_is_named_with_its_lines(
    directory: Path, how: str, law: str, text: str
) -> None:
    lines = (directory / "mine.py").read_text().splitlines()
    places = {line.partition("  # ")[2]: f"mine.py:{at}" for at, line in enumerate(lines, start=1)}
    found = findings(users(directory, "Overlaps", how=how))
    failed = [each for each in found.values() if each.status == "failed"]
    assert [each.law for each in failed] == [law]  # others are not tried
    assert re.search(text.format_map(places), failed[0].got), failed[0].got


def test_a_right_use_of_requests_keeps_all_laws(directory: Path) -> None:
    found = findings(users(directory, "Overlaps"))
    assert {each.status for each in found.values()} == {"ok", "note", "skipped"}
    assert (found["requests"].status, found["requests"].inputs) == ("ok", 2)
    assert findings(users(directory, "Averages"), "ends", "requests")["requests"].status == "skipped"


class OnlyPairs(wrong.Averages):
    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        return f"no pairs: {ranks} ranks, batch {batch_size}" if ranks % 2 else None


OF_TORCH = ("ddp", "zero1", "zero2", "fsdp", "pipeline_torch")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in OF_TORCH)) for name in STRATEGIES.entries]


@pytest.mark.parametrize("name", NAMES)
def test_a_registered_strategy_keeps_all_laws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank and three, or on two. Between processes, which take long to start, only once."""
    kind = StrategyKind(STRATEGIES.parse(name), On(limit_s=400))  # of a busy machine
    deterministic = kind.own.deterministic
    between_processes = "memory" not in kind.own.transports or kind.own.forks
    numbers = [Ranks(number=number) for number in ((2, 3) if between_processes else (1, 3, 2))]
    monkeypatch.setattr(strategy, "RANKS", numbers)
    monkeypatch.setattr(strategy, "TRAINED", 1 if between_processes else 2)
    tried = {law.name for law in kind.laws()}
    tried -= {"repeats"} if between_processes and deterministic else set()
    found = findings(kind, *tried)
    assert [each for each in found.values() if each.status == "failed"] == []
    assert all(each.reason for each in found.values() if each.status in ("skipped", "note"))
    assert (name == "fault_injection") == ({each.status for each in found.values()} == {"skipped"})
    assert deterministic or found["repeats"].reason == "it declares that it is not deterministic"


def test_what_a_strategy_must_equal_can_be_given_and_could_be_declared(directory: Path) -> None:
    """The option comes before what it declares."""
    given = [("one_shot", ""), ("one_shot", "all_reduce"), ("all_gather", "serial")]
    for (name, equals), status in zip(given, ("skipped", "failed", "failed"), strict=True):
        kind = StrategyKind(STRATEGIES.parse(name), On(equals=equals))
        assert findings(kind, "ends", "equals")["equals"].status == status
    for name, could in (("Averages", True), ("takes the next rank's", False)):
        equal = findings(users(directory, name), "ends", "equals")["equals"]
        assert (equal.status, "all_reduce" in equal.reason) == ("note" if could else "skipped", could)


def test_strategies_that_call_torch_have_their_own_transport_or_are_left_out(directory: Path) -> None:
    found = findings(users(directory, "CallsTorch"), "ends", "samples", "agree", "one", "bytes")
    assert found["ends"].inputs == 3
    assert found.pop("bytes").status == "note"  # what torch sends by itself is not counted
    assert {each.status for each in found.values()} <= {"ok", "note"}
    skipped = findings(users(directory, "CallsTorchOverMpi"), "ends")["ends"]  # it needs a launcher
    assert (skipped.status, "lists only mpi" in skipped.reason) == ("skipped", True)
    pairs = findings(StrategyKind(OnlyPairs()), "ends")["ends"]  # it refuses other numbers of ranks
    assert (pairs.status, pairs.inputs) == ("ok", 1)


SEVEN, THREE = property(lambda self: 7), property(lambda self: 3)
InRounds = declaring(LocalSGD, parts_of_work=SEVEN, micro_batch_count=THREE)


def loaded(called: Any, ranks: int = 2, **parameters: Any) -> StrategyKind:
    kind = StrategyKind(StrategyKind.adapt(called, parameters, NOWHERE), On(ranks=ranks, batch_size=8))
    kind.load()
    return kind


def test_a_strategy_that_cannot_be_trained_is_refused() -> None:
    train = {"train": lambda self, session: None}
    cases = {
        "does not define the method train": (declaring(Strategy, transports=("gloo",)), {}),
        "declares no transports": (declaring(Strategy, **train), {}),
        "transports have 'tcp'; allowed: memory, ": (declaring(Strategy, transports=("tcp",), **train), {}),
        "no subclass of trainer.core.strategy.Strategy": (train["train"], {}),
        "aggregation: mean": (InRounds, {"aggregation": "median"}),
        "no pairs: 3 ranks, batch 8": (OnlyPairs, {"ranks": 3}),
    }
    assert failing(cases, lambda case: loaded(case[0], **case[1])) == {}


def test_what_a_run_knows_of_a_strategy() -> None:
    known = loaded(InRounds, local_steps=3, participation={"fraction": 0.5}).facts()
    assert (known["parts_of_work"], known["micro_batch_count"], known["replica_of"]) == (7, 3, [0, 1])
    first = imported(ImportedStrategy, known)
    sent = json.loads(json.dumps(first.imported.model_dump(mode="json")))
    for each in (first, imported(ImportedStrategy, sent)):
        assert (each.parts_of_work, each.micro_batch_count, each.replicas(2)) == (7, 3, 2)
        assert (each.transports, each.equals) == (LocalSGD.transports, LocalSGD.equals)
        assert (each.rounds.steps, each.rounds.participation.fraction) == (3, 0.5)  # type: ignore[union-attr]
        assert "tried for 2 ranks, and the run has 3" in (each.validation_error(None, 3, 8) or "")
        assert each.validation_error(None, 2, 8) is None
    assert loaded(InRounds).facts()["rounds"] is None
    false = {"replicas": 0, "replica_of": [0, -1], "micro_batch_count": 0, "parts_of_work": 2**25}
    for name, value in {**false, "transports": [], "sent_per_counted": 0.5, "unknown": 1}.items():
        with pytest.raises(ValueError, match=name):
            imported(ImportedStrategy, {**sent, name: value})


def test_what_older_results_know_of_a_strategy_is_read() -> None:
    declared = {"transports": ["gloo"], "servers": 1}
    lists = {"replica_of": [2, 0, 1], "reports_samples": [False, True, True], "sees_inputs": [True] * 3}
    older = {"declared": declared, **lists, "recompute_errors": {"full": "no"}}
    each = imported(ImportedStrategy, older)
    assert (each.transports, each.servers, each.replicas(3)) == (("gloo",), 1, 2)
    assert ([each.replica_of(rank, 3) for rank in range(3)], each.min_nodes) == ([2, 0, 1], 1)
    assert (each.recompute_error("full"), each.recompute_error("selective")) == ("no", None)
    assert each.validation_error(None, 3, 8) is None
