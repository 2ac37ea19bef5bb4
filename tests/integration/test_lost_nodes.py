"""Killed, suspended and damaged nodes: the row names the cause, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.results.records import RunResult
from tests.support import runs
from tests.support.nightly import nightly
from tests.support.processes import node_processes, starts
from tests.support.rank_killer import RankKiller, When, always, kill_process, reported
from tests.support.runs import SMALL, RecordingDisplay
from trainer.launch.ranks import TEARDOWN_S
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., RunResult]


class SignalRank(RecordingDisplay):
    """Sends a signal to a rank's process after the first event of a kind."""

    def __init__(self, number: signal.Signals, rank: int, after: str = "epoch") -> None:
        super().__init__()
        self._number, self._rank, self._after = number, rank, after
        self.pid = 0
        self.at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        pids: dict[int, int] = {}
        while self._rank not in pids or not any(event.kind == self._after for event in self.seen):
            time.sleep(0.02)
            pids = {event.rank: event.fields["pid"] for event in self.seen if event.kind == "start"}
        self.pid = pids[self._rank]
        self.at = time.time()
        os.kill(self.pid, self._number)


def first_cause(result: RunResult, transport: str) -> str:
    """The cause of the first rank named; with mpirun, which kills the others, several may be named."""
    cause = str(result.cause)
    return cause if transport == "mpi" else cause.split(" and ")[0]


# One strategy for each way to wait for peers: each transport's collectives, its send and receive, and
# torch's collectives, pipelines and shared memory.
@pytest.mark.parametrize(
    ("strategy", "transport"),
    [
        ("all_reduce", "mpi"),
        ("fsdp", "gloo"),
        ("pipeline", "gloo"),
        ("hogwild", "memory"),
        *nightly(
            ("all_reduce", "gloo"),
            ("all_reduce", "rpc"),
            ("ddp", "gloo"),
            ("pipeline", "mpi"),
            ("pipeline_torch", "gloo"),
        ),
    ],
)
def test_killed_rank_is_named(execute: Execute, tmp_path: Path, strategy: str, transport: str) -> None:
    """The others stop without waiting for the timeout."""
    display = SignalRank(signal.SIGKILL, 1)
    result = execute(display, strategy=strategy, transport=transport, nodes=3, epochs=5000)
    assert result.status == "failed"
    assert f"node 1 (process {display.pid})" in first_cause(result, transport)
    assert "SIGKILL" in str(result.cause)
    assert result.started_at + result.wall_s - display.at < 60  # timeout_s is 120
    assert node_processes(tmp_path) == []


@pytest.mark.parametrize("when", [always, reported("start", 1)], ids=["at-process-start", "at-rendezvous"])
@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
def test_rank_killed_before_training_is_named(
    execute: Execute, tmp_path: Path, transport: str, when: When
) -> None:
    """Alone, though its peers may report that it did not join, or not even start."""
    with RankKiller(kill_process(tmp_path), 1, when=when) as killer:
        result = execute(killer, strategy="all_reduce", transport=transport, nodes=3, epochs=5000)
    assert killer.killed
    assert result.status == "failed"
    named = r"node 1\b(?! and).* was killed by SIGKILL"
    if any(log.stat().st_size == 0 for log in tmp_path.rglob("launcher.log")):
        # mpirun kills the other ranks, and sometimes ends without a word on which one it had lost. The
        # parent of warm nodes knows a rank that was killed, but here its client was.
        named = r"one of .*\bnode 1\b.* was killed by SIGKILL"
    assert re.match(named, str(result.cause)), result.cause
    assert node_processes(tmp_path) == []


@pytest.mark.parametrize(
    ("strategy", "transport"), [("all_reduce", "gloo"), ("all_reduce", "mpi"), ("hogwild", "memory")]
)
def test_killed_rank_among_several_in_a_node_is_named(
    execute: Execute, tmp_path: Path, strategy: str, transport: str
) -> None:
    display = SignalRank(signal.SIGKILL, 2)
    result = execute(
        display, strategy=strategy, transport=transport, nodes=2, processes_per_node=2, epochs=5000
    )
    assert result.status == "failed"
    assert f"rank 2 of node 1 (process {display.pid})" in first_cause(result, transport)
    assert "SIGKILL" in str(result.cause)
    assert node_processes(tmp_path) == []


def test_terminated_rank_is_the_cause_not_the_lost_connections(execute: Execute) -> None:
    display = SignalRank(signal.SIGTERM, 1)
    result = execute(display, strategy="all_reduce", transport="gloo", nodes=2, epochs=5000)
    assert result.status == "failed"
    assert str(result.cause).startswith(f"node 1 (process {display.pid})")
    assert "SIGTERM" in str(result.cause)
    assert "node 0" not in str(result.cause)


def test_suspended_rank_is_killed_at_the_timeout(execute: Execute, tmp_path: Path) -> None:
    """After SIGSTOP, a process does not handle SIGTERM."""
    display = SignalRank(signal.SIGSTOP, 0, after="start")
    result = execute(
        display, strategy="all_reduce", transport="gloo", nodes=2, epochs=5000, timeout_s=starts(4)
    )
    assert result.status == "timeout"
    assert f"node 0 (process {display.pid})" in str(result.cause)
    assert "node 1" not in str(result.cause)
    assert node_processes(tmp_path) == []


@pytest.mark.nightly
def test_rank_that_hangs_outlives_ranks_that_have_finished(execute: Execute) -> None:
    """The teardown alarm applies to ranks with results, not to other ranks in the same process."""
    limit_s = TEARDOWN_S + starts(2)
    strategy = {"name": "fault_injection", "fault": "stall"}
    result = execute(strategy=strategy, transport="memory", nodes=2, timeout_s=limit_s)
    assert result.status == "timeout"
    assert f"{limit_s:.0f} s" in str(result.cause)
    assert "node 0" in str(result.cause)


def test_allocation_that_fails_is_the_cause(execute: Execute) -> None:
    huge = {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6}
    result = execute(strategy="all_reduce", transport="gloo", nodes=2, dataset=huge)
    assert result.status == "failed"
    assert "Unable to allocate" in str(result.cause)  # NumPy's message


def test_ranks_of_a_node_append_to_one_log(execute: Execute, tmp_path: Path) -> None:
    strategy = {"name": "fault_injection", "fault": "flood", "rank": 3, "work_s": 0.1, "lines": 1000}
    result = execute(strategy=strategy, transport="gloo", nodes=2, processes_per_node=2)
    assert (result.status, result.cause, len(result.ranks)) == ("ok", None, 4)
    run = tmp_path / "results" / result.key
    assert run.name.startswith("fault_injection-gloo-n2x2-s0-")
    assert {path.name for path in run.glob("node-*.log")} == {"node-0.log", "node-1.log"}
    assert (run / "node-1.log").read_text().count("fault_injection line") == 1000


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_results_directory_may_have_any_name(tmp_path: Path, transport: str) -> None:
    directory = tmp_path / "a#b? %20ö [c]"
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": transport, "nodes": 2})
    result = runs.execute(run, directory)
    assert (result.status, result.cause) == ("ok", None)
    assert list(tmp_path.iterdir()) == [directory]
