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
from unittest.mock import patch

import pytest

from trainer.__main__ import _redirect_console
from trainer.comm.errors import CommunicationError
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventWriter
from trainer.core.result import TrainResult
from trainer.data.base import DataError
from trainer.launch import ranks as module
from trainer.launch.ranks import run_forked, run_rank, run_threads
from trainer.training.stopping import Stopped

RESULT = TrainResult(steps=1, samples=2, train_s=3.0, work_cpu_s=4.0, seconds={}, bytes_sent=5.0)
LOST = CommunicationError("barrier failed")
Run = Callable[..., tuple[bool, list[str], dict[str, dict[str, Any]]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(outcome, closing, attempt)`: whether a rank succeeds, its calls and events, in order.

    outcome: of its training. closing: what the communicator raises when it is closed. attempt: set if
    torchrun restarts ranks.
    """

    def run(outcome: Any, closing: Exception | None = None, attempt: int | None = None) -> Any:
        calls, events = list[str](), dict[str, dict[str, Any]]()

        def step(name: str, outcome: Any = None) -> Callable[..., Any]:
            def act(*_: Any) -> Any:
                calls.append(name)
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome

            return act

        def write(kind: str, **fields: Any) -> None:
            Event(0.0, "run", 0, "host", kind, fields).to_line().encode()  # raises if it is too large
            calls.append(kind)
            events[kind] = fields

        monkeypatch.setattr(module, "exit_barrier", step("exit barrier"))
        monkeypatch.setattr(module, "train", step("train", outcome))
        comm: Any = SimpleNamespace(close=step("close", closing), abort=step("abort"))
        spec = SimpleNamespace(strategy=SimpleNamespace(trains=True), debug=False)
        watchdog: Any = SimpleNamespace(exit_within=step("alarm"), follow=lambda _: None)
        context, writer = NodeContext(0, 1, "gloo", Path(), attempt=attempt), SimpleNamespace(write=write)
        task: Any = SimpleNamespace(spec=spec)
        return run_rank(context, task, writer, watchdog, lambda: comm), calls, events  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("outcome", "closing", "attempt", "calls"),
    [
        (RESULT, None, None, ["train", "result", "alarm", "close", "done"]),
        (RESULT, LOST, None, ["train", "result", "alarm", "close", "failed", "abort"]),
        (Stopped("SIGTERM"), LOST, None, ["train", "terminated", "alarm", "close"]),
        # After the exit barrier every result counts.
        (RESULT, LOST, 0, ["train", "result", "exit barrier", "done", "alarm", "close"]),
    ],
    ids=["done", "cannot close", "stopped at a checkpoint", "restarted, cannot close"],
)
def test_order_of_events(run: Run, outcome: Any, closing: Any, attempt: Any, calls: list[str]) -> None:
    succeeded, found, events = run(outcome, closing, attempt)
    assert (found, succeeded) == (calls, "failed" not in calls)
    assert events.get("result", RESULT.model_dump()) == RESULT.model_dump()
    assert "terminated" not in calls or events["terminated"]["cause"] == "stopped at a checkpoint: SIGTERM"


def test_failed_event_has_cause_and_traceback(run: Run) -> None:
    for error, cause, peer in (
        (KeyError("odd"), "KeyError: 'odd'", False),
        (DataError("mnist is not in data"), "mnist is not in data", False),
        (CommunicationError("all-reduce failed"), "all-reduce failed", True),
    ):
        succeeded, calls, events = run(error)
        assert (succeeded, calls) == (False, ["train", "failed", "abort"])
        reported = events["failed"]
        assert (reported["cause"], reported["peer"]) == (cause, peer)
        assert reported["traceback"].rstrip().endswith(str(error))
        assert "in act" in reported["traceback"]


def test_long_failure_keeps_its_ends(run: Run) -> None:
    """Without the event, ranks waiting for this one would block until the timeout."""
    for text in ("/data/", "/用户/数据/", "🙂", "line\n", '"', "\udcf6"):
        reported = run(ValueError(f"{text * 4000}, last words"))[2]["failed"]
        assert reported["cause"].startswith("ValueError: ")
        for field in ("cause", "traceback"):
            assert reported[field].rstrip().endswith("last words")
            assert len(reported[field]) > 100


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

    def forked(context: NodeContext, *_: Any) -> None:
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    monkeypatch.setattr(module, "_forked_rank", forked)
    monkeypatch.setattr(module, "Watchdog", lambda *_: nullcontext())
    strategy = SimpleNamespace(shared_state=lambda _: None)
    task: Any = SimpleNamespace(spec=SimpleNamespace(strategy=strategy))
    events: Any = SimpleNamespace(
        as_rank=lambda rank: SimpleNamespace(
            write=lambda kind, **fields: written.append((rank, kind, fields))
        )
    )
    assert not run_forked(NodeContext(0, 3, "shared_memory", Path()), task, events, None)
    assert written == [(1, "died", {"cause": "killed by SIGKILL", "signal": "SIGKILL"})]


def test_both_streams_of_a_rank_are_appended_to_its_log(tmp_path: Path) -> None:
    (log := tmp_path / "node-0.log").write_text("of another rank ")
    with patch.object(os, "dup2", lambda file, to: os.write(file, b"%d" % to)):
        _redirect_console(log)
    assert log.read_text() == "of another rank 12"
