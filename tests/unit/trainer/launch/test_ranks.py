"""Mistakes in running ranks: the order of events, what a failure says, which rank it blames."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.comm.base import CommunicationError
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventWriter
from trainer.core.result import TrainResult
from trainer.data.base import DataError
from trainer.launch import ranks as module
from trainer.launch.ranks import attempt_fields, run_forked, run_rank, run_threads
from trainer.training.stopping import Stopped

RESULT = TrainResult(steps=1, samples=2, train_s=3.0, work_cpu_s=4.0, seconds={}, bytes_sent=5.0)


class Rank:
    """Runs `train` as a rank's strategy and records calls and events in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempt: int | None = None  # set if torchrun restarts ranks
        self.calls: list[str] = []
        self.events: dict[str, dict[str, Any]] = {}
        self._patch = monkeypatch

    def run(self, train: Callable[[], TrainResult], closing: Exception | None = None) -> bool:
        """closing: what the communicator raises when it is closed."""

        def recorder(what: str, error: Exception | None = None) -> Callable[..., None]:
            def record(*_: Any) -> None:
                self.calls.append(what)
                if error:
                    raise error

            return record

        def write(kind: str, **fields: Any) -> None:
            Event(0.0, "run", 0, "host", kind, fields).to_line().encode()  # raises if it is too large
            self.calls.append(kind)
            self.events[kind] = fields

        self._patch.setattr(module, "exit_barrier", recorder("exit barrier"))
        self._patch.setattr(module, "train", lambda *_: train())
        comm: Any = SimpleNamespace(close=recorder("close", closing), abort=recorder("abort"))
        spec = SimpleNamespace(strategy=SimpleNamespace(trains=True), debug=False)
        task: Any = SimpleNamespace(spec=spec)
        watchdog: Any = SimpleNamespace(exit_within=recorder("alarm"), follow=lambda _: None)
        writer = EventWriter("run", 0)
        self._patch.setattr(writer, "write", write)
        context = NodeContext(0, 1, "gloo", Path(), attempt=self.attempt)
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


LOST = CommunicationError("barrier failed")


@pytest.mark.parametrize(
    ("attempt", "closing", "calls"),
    [
        (None, None, ["result", "alarm", "close", "done"]),
        (None, LOST, ["result", "alarm", "close", "failed", "abort"]),
        # After the exit barrier every result counts.
        (0, None, ["result", "exit barrier", "done", "alarm", "close"]),
        (0, LOST, ["result", "exit barrier", "done", "alarm", "close"]),
    ],
    ids=["done", "cannot close", "restarted", "restarted, cannot close"],
)
def test_order_of_events(
    rank: Rank, attempt: int | None, closing: Exception | None, calls: list[str]
) -> None:
    rank.attempt = attempt
    assert rank.run(lambda: RESULT, closing) == ("failed" not in calls)
    assert rank.calls == calls
    assert rank.events["result"] == RESULT.model_dump()


def test_a_run_that_stops_at_a_checkpoint_has_not_failed(rank: Rank) -> None:
    def stop() -> TrainResult:
        raise Stopped("SIGTERM")

    assert rank.run(stop, LOST)
    assert rank.calls == ["terminated", "alarm", "close"]
    assert rank.events["terminated"]["cause"] == "stopped at a checkpoint: SIGTERM"


@pytest.mark.parametrize(
    ("error", "cause", "peer"),
    [
        (KeyError("odd"), "KeyError: 'odd'", False),
        (DataError("mnist is not in data"), "mnist is not in data", False),
        (CommunicationError("all-reduce failed"), "all-reduce failed", True),
    ],
    ids=str,
)
def test_failed_event_has_cause_and_traceback(rank: Rank, error: Exception, cause: str, peer: bool) -> None:
    reported = rank.fail(error)
    assert (reported["cause"], reported["peer"]) == (cause, peer)
    assert reported["traceback"].rstrip().endswith(str(error))
    assert "in train" in reported["traceback"]


@pytest.mark.parametrize("text", ["/data/", "/用户/数据/", "🙂", "line\n", '"', "C:\\", "\udcf6"], ids=repr)
def test_long_failure_keeps_its_ends(rank: Rank, text: str) -> None:
    """Without the event, ranks waiting for this one would block until the timeout."""
    reported = rank.fail(ValueError(f"{text * 4000}, last words"))
    assert reported["cause"].startswith("ValueError: ")
    assert reported["cause"].endswith("last words")
    assert reported["traceback"].rstrip().endswith("last words")
    assert min(len(reported["cause"]), len(reported["traceback"])) > 100


def test_which_earlier_starts_are_reported() -> None:
    """A rank that has returned counts its own, one that torchrun restarts those of all ranks."""
    cases: list[tuple[dict[str, int], dict[str, int]]] = [
        ({"incarnation": 2, "requeues": 3}, {"incarnation": 2}),
        ({"attempt": 0, "requeues": 3}, {"attempt": 0}),
        ({"requeues": 3}, {"attempt": 3}),
        ({}, {}),
    ]
    for given, expected in cases:
        assert attempt_fields(NodeContext(0, 1, "gloo", Path(), **given)) == expected


def test_threads_leave_the_time_limit_of_a_run_to_the_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(context: NodeContext, *others: Any) -> bool:
        time.sleep(0.2 * context.rank)
        others[-1]().barrier()
        return True

    monkeypatch.setattr(module, "run_rank", meet)
    monkeypatch.setattr(module, "Watchdog", lambda *_: nullcontext())
    context, task = NodeContext(0, 2, "memory", Path(), timeout_s=0.02), SimpleNamespace()
    assert run_threads(context, task, EventWriter("run", 0), None)  # type: ignore[arg-type]


def test_only_the_first_forked_rank_that_fails_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """It terminates the others, which may be waiting for it."""
    written = []

    def as_rank(rank: int) -> Any:
        return SimpleNamespace(write=lambda kind, **fields: written.append((rank, kind, fields["signal"])))

    def forked(context: NodeContext, *_: Any) -> None:
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    monkeypatch.setattr(module, "_forked_rank", forked)
    monkeypatch.setattr(module, "Watchdog", lambda *_: nullcontext())
    strategy = SimpleNamespace(shared_state=lambda _: None)
    task: Any = SimpleNamespace(spec=SimpleNamespace(strategy=strategy))
    events: Any = SimpleNamespace(as_rank=as_rank)
    assert not run_forked(NodeContext(0, 3, "shared_memory", Path()), task, events, None)
    assert written == [(1, "died", "SIGKILL")]
