"""Events that a rank writes on success and on failure."""

from __future__ import annotations

import os
import time
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
from trainer.launch.ranks import run_rank, run_threads

RESULT = TrainResult(steps=1, samples=2, train_s=3.0, work_cpu_s=4.0, seconds={}, bytes_sent=5.0)


class Rank:
    """Runs `train` as a rank's strategy and records calls and events in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempt: int | None = None  # set if torchrun restarts ranks
        self.calls: list[str] = []
        self.events: dict[str, dict[str, Any]] = {}
        self._patch = monkeypatch

    def run(self, train: Callable[[], TrainResult], close: Callable[[], None] = lambda: None) -> bool:
        def recorder(what: str, then: Callable[[], None] = lambda: None) -> Callable[..., None]:
            return lambda *_: (self.calls.append(what), then())[1]  # type: ignore[func-returns-value]

        def write(kind: str, **fields: Any) -> None:
            Event(
                0.0, "run", 0, "host", kind, fields
            ).to_line().encode()  # raises if it exceeds the size limit
            self.calls.append(kind)
            self.events[kind] = fields

        self._patch.setattr("trainer.launch.ranks.exit_barrier", recorder("exit barrier"))
        comm: Any = SimpleNamespace(close=recorder("close", close), abort=recorder("abort"))
        context = NodeContext(0, 1, "gloo", Path(), attempt=self.attempt)
        task: Any = SimpleNamespace(
            spec=SimpleNamespace(strategy=SimpleNamespace(trains=True), debug=False)
        )
        self._patch.setattr("trainer.launch.ranks.train", lambda *_: train())
        watchdog: Any = SimpleNamespace(exit_within=recorder("alarm"), follow=lambda _: None)
        writer = EventWriter("run", 0)
        self._patch.setattr(writer, "write", write)
        return run_rank(context, task, writer, watchdog, lambda: comm)

    def fail(self, error: Exception) -> dict[str, Any]:
        """Raise `error` during training; return the fields of the `failed` event."""

        def train() -> TrainResult:
            raise error

        assert not self.run(train)
        assert self.calls == ["failed", "abort"]
        return self.events["failed"]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_result_is_written_before_close_and_done_after(rank: Rank) -> None:
    assert rank.run(lambda: RESULT)
    assert rank.calls == ["result", "alarm", "close", "done"]
    assert rank.events["result"] == RESULT.model_dump()


@pytest.mark.parametrize("close_succeeds", [True, False])
def test_done_after_the_exit_barrier_is_final(rank: Rank, close_succeeds: bool) -> None:
    def close() -> None:
        if not close_succeeds:
            raise CommunicationError("barrier failed")

    rank.attempt = 0
    assert rank.run(lambda: RESULT, close)
    assert rank.calls == ["result", "exit barrier", "done", "alarm", "close"]


def test_failed_close_is_a_failure(rank: Rank) -> None:
    def close() -> None:
        raise CommunicationError("barrier failed")

    assert not rank.run(lambda: RESULT, close)
    assert rank.calls == ["result", "alarm", "close", "failed", "abort"]
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
def test_failed_event_has_cause_and_traceback(rank: Rank, error: Exception, cause: str, peer: bool) -> None:
    reported = rank.fail(error)
    assert (reported["cause"], reported["peer"]) == (cause, peer)
    assert reported["traceback"].rstrip().endswith(str(error))
    assert "in train" in reported["traceback"]


@pytest.mark.parametrize(
    "text", ["/home/user/data/", "/home/用户/数据/", "🙂", "line\n", '"', "C:\\data\\"], ids=repr
)
def test_long_failure_is_truncated_and_written(rank: Rank, text: str) -> None:
    # Without the event, ranks waiting for this one would block until the timeout.
    reported = rank.fail(DataError(f"first words: {text * 4000}"))
    assert len(reported["cause"]) > 100
    assert len(reported["traceback"]) > 100


def test_truncated_cause_keeps_its_beginning(rank: Rank) -> None:
    assert rank.fail(ValueError("x" * 9000))["cause"].startswith("ValueError: x")


def test_failure_with_an_undecodable_path_is_written(rank: Rank) -> None:
    path = Path(os.fsdecode(b"/data/gr\xf6\xdfer"))  # named on a Latin-1 system
    assert rank.fail(DataError(f"cannot read {path}"))


def test_threads_leave_the_time_limit_of_a_run_to_the_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(context: NodeContext, *others: Any) -> bool:
        connected = others[-1]
        time.sleep(0.2 * context.rank)
        connected().barrier()
        return True

    monkeypatch.setattr("trainer.launch.ranks.run_rank", meet)
    task: Any = None
    assert run_threads(
        NodeContext(0, 2, "memory", Path(), timeout_s=0.02), task, EventWriter("run", 0), None
    )
