"""What a rank says of itself, whatever becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.comm.base import CommunicationError
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventWriter
from trainer.core.result import TrainResult
from trainer.data.base import DataError
from trainer.launch.ranks import run_rank

RESULT = TrainResult(steps=1, samples=2, train_s=3.0, work_cpu_s=4.0, seconds={}, bytes_sent=5.0)


class Rank:
    """Runs `train` as a rank's strategy and keeps what happens, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempt: int | None = None  # where torchrun starts ranks again
        self.happened: list[str] = []
        self.events: dict[str, dict[str, Any]] = {}
        self._patch = monkeypatch

    def run(self, train: Callable[[], TrainResult], close: Callable[[], None] = lambda: None) -> bool:
        def noted(what: str, then: Callable[[], None] = lambda: None) -> Callable[..., None]:
            return lambda *_: (self.happened.append(what), then())[1]  # type: ignore[func-returns-value]

        def write(kind: str, **fields: Any) -> None:
            Event(0.0, "run", 0, "host", kind, fields).to_line().encode()  # must fit
            self.happened.append(kind)
            self.events[kind] = fields

        self._patch.setattr("trainer.launch.ranks.exit_barrier", noted("last meeting"))
        comm: Any = SimpleNamespace(close=noted("close", close), abort=noted("abort"))
        context = NodeContext(0, 1, "gloo", Path(), attempt=self.attempt)
        task: Any = SimpleNamespace(spec=SimpleNamespace(strategy=SimpleNamespace(trains=True)))
        self._patch.setattr("trainer.launch.ranks.train", lambda *_: train())
        watchdog: Any = SimpleNamespace(exit_within=noted("alarm"))
        writer = EventWriter("run", 0)
        self._patch.setattr(writer, "write", write)
        return run_rank(context, task, writer, watchdog, lambda: comm)

    def fail(self, error: Exception) -> dict[str, Any]:
        """Train until `error`; the fields of the `failed` event."""

        def train() -> TrainResult:
            raise error

        assert not self.run(train)
        assert self.happened == ["failed", "abort"]
        return self.events["failed"]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_success_is_told_before_and_after_parting(rank: Rank) -> None:
    assert rank.run(lambda: RESULT)
    assert rank.happened == ["result", "alarm", "close", "done"]
    assert rank.events["result"] == RESULT.model_dump()


@pytest.mark.parametrize("parts", [True, False])
def test_what_is_done_at_the_last_meeting_no_parting_can_undo(rank: Rank, parts: bool) -> None:
    def close() -> None:
        if not parts:
            raise CommunicationError("barrier failed")

    rank.attempt = 0
    assert rank.run(lambda: RESULT, close)
    assert rank.happened == ["result", "last meeting", "done", "alarm", "close"]


def test_a_failed_parting_is_a_failure(rank: Rank) -> None:
    def close() -> None:
        raise CommunicationError("barrier failed")

    assert not rank.run(lambda: RESULT, close)
    assert rank.happened == ["result", "alarm", "close", "failed", "abort"]
    assert rank.events["failed"]["peer"]


@pytest.mark.parametrize(
    ("error", "cause", "peer"),
    [
        (ValueError("odd"), "ValueError: odd", False),
        (KeyError("odd"), "KeyError: 'odd'", False),
        (DataError("mnist is not in data"), "mnist is not in data", False),
        (CommunicationError("all-reduce failed"), "all-reduce failed", True),
    ],
)
def test_a_failure_says_why_and_where(rank: Rank, error: Exception, cause: str, peer: bool) -> None:
    reported = rank.fail(error)
    assert (reported["cause"], reported["peer"]) == (cause, peer)
    assert reported["traceback"].rstrip().endswith(str(error))
    assert "in train" in reported["traceback"]


@pytest.mark.parametrize(
    "text", ["/home/user/data/", "/home/用户/数据/", "🙂", "line\n", '"', "C:\\data\\"], ids=repr
)
def test_a_failure_however_long_is_told(rank: Rank, text: str) -> None:
    # If it were not, those who wait for this rank would not be released.
    reported = rank.fail(DataError(f"first words: {text * 4000}"))
    assert len(reported["cause"]) > 100
    assert len(reported["traceback"]) > 100


def test_a_long_cause_keeps_its_beginning(rank: Rank) -> None:
    assert rank.fail(ValueError("x" * 9000))["cause"].startswith("ValueError: x")


def test_a_failure_about_a_path_of_another_encoding_is_told(rank: Rank) -> None:
    path = Path(os.fsdecode(b"/data/gr\xf6\xdfer"))  # as a Latin-1 system named it
    assert rank.fail(DataError(f"cannot read {path}"))
