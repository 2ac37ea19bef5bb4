"""What happens when something happens to local processes: a named cause, and nothing left.

What every runtime owes, fault_injection in all its moods among it, is in tests/contract.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.processes import node_processes
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., RunResult]


def kill_in_training(display: RecordingDisplay, rank: int, after: str = "epoch") -> list[int]:
    """SIGKILL a rank once there was such an event; its process id is in the list from then on."""
    killed: list[int] = []

    def kill() -> None:
        while not any(event.kind == after for event in display.seen):
            time.sleep(0.02)
        pids = {event.rank: event.fields["pid"] for event in display.seen if event.kind == "start"}
        killed.append(pids[rank])
        os.kill(pids[rank], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    return killed


@pytest.mark.parametrize(
    ("strategy", "transport"),
    [
        ("one_shot", "mpi"),
        ("all_reduce", "mpi"),
        ("all_reduce", "gloo"),
        ("all_reduce", "rpc"),
        ("ddp", "gloo"),
        ("zero1", "gloo"),
        ("fsdp", "gloo"),
        ("pipeline", "gloo"),
        ("pipeline", "mpi"),
        ("pipeline_torch", "gloo"),
        ("tensor_parallel", "gloo"),
        ("hogwild", "memory"),
    ],
)
def test_kill_9_of_one_node_in_training(
    execute: Execute, tmp_path: Path, strategy: str, transport: str
) -> None:
    """The row names the node, the others are stopped, and it does not take the timeout to notice."""
    display = RecordingDisplay()
    killed = kill_in_training(display, 1)
    result = execute(display, strategy=strategy, transport=transport, nodes=3, epochs=5000)
    assert result.status == "failed"
    assert result.cause is not None
    # mpirun ends the others hard: on a busy machine one of them may not get its last word out either.
    named = result.cause if transport == "mpi" else result.cause.split(" and ")[0]
    assert f"node 1 (process {killed[0]})" in named
    assert "killed by SIGKILL" in result.cause or "exited without a report" in result.cause
    assert result.wall_s < 50
    assert node_processes(tmp_path) == []


@pytest.mark.parametrize(
    ("strategy", "transport"), [("all_reduce", "gloo"), ("all_reduce", "mpi"), ("hogwild", "memory")]
)
def test_kill_9_of_one_rank_among_several_in_a_node(
    execute: Execute, tmp_path: Path, strategy: str, transport: str
) -> None:
    display = RecordingDisplay()
    killed = kill_in_training(display, 2)
    result = execute(
        display, strategy=strategy, transport=transport, nodes=2, processes_per_node=2, epochs=5000
    )
    assert result.status == "failed"
    named = str(result.cause) if transport == "mpi" else str(result.cause).split(" and ")[0]
    assert f"rank 2 of node 1 (process {killed[0]})" in named
    assert "killed by SIGKILL" in named or "exited without a report" in str(result.cause)
    assert node_processes(tmp_path) == []


@pytest.mark.parametrize("transport", ["memory", "gloo", "mpi"])
def test_ranks_of_a_node_share_its_log(execute: Execute, tmp_path: Path, transport: str) -> None:
    fault_injection = {"name": "fault_injection", "fault": "flood", "rank": 3, "work_s": 0.1, "lines": 1000}
    result = execute(strategy=fault_injection, transport=transport, nodes=2, processes_per_node=2)
    assert (result.status, result.cause, len(result.ranks)) == ("ok", None, 4)
    run = tmp_path / "results" / result.key
    assert run.name.startswith(f"fault_injection-{transport}-n2x2-s0-")
    logs = {path.name for path in run.glob("node-*.log")}
    assert logs == ({"node-0.log"} if transport == "memory" else {"node-0.log", "node-1.log"})
    assert (run / max(logs)).read_text().count("fault_injection line") == 1000


def test_a_stopped_node_is_ended_by_the_timeout(execute: Execute, tmp_path: Path) -> None:
    """SIGSTOP: the process is there but says nothing and hears no SIGTERM."""
    display = RecordingDisplay()

    def stop_rank_0() -> None:
        while not (pids := [e.fields["pid"] for e in display.seen if e.kind == "start" and e.rank == 0]):
            time.sleep(0.02)
        os.kill(pids[0], signal.SIGSTOP)

    threading.Thread(target=stop_rank_0, daemon=True).start()
    result = execute(display, strategy="all_reduce", transport="gloo", nodes=2, epochs=5000, timeout_s=8.0)
    assert result.status == "timeout"
    assert node_processes(tmp_path) == []


def test_a_node_that_somebody_terminates_is_the_cause(execute: Execute) -> None:
    """The others complain of lost connections; that is not why the run failed."""
    display = RecordingDisplay()

    def terminate_rank_1() -> None:
        while not any(event.kind == "epoch" for event in display.seen):
            time.sleep(0.02)
        pids = {event.rank: event.fields["pid"] for event in display.seen if event.kind == "start"}
        os.kill(pids[1], signal.SIGTERM)

    threading.Thread(target=terminate_rank_1, daemon=True).start()
    result = execute(display, strategy="all_reduce", transport="gloo", nodes=2, epochs=5000)
    assert result.status == "failed"
    assert re.fullmatch(r"node 1 \(process \d+\) was stopped by SIGTERM from outside", str(result.cause))


def test_a_dataset_that_does_not_fit_into_memory_is_named(execute: Execute) -> None:
    huge = {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6}
    result = execute(strategy="all_reduce", transport="gloo", nodes=2, dataset=huge)
    assert result.status == "failed"
    assert "Unable to allocate" in str(result.cause)


@pytest.mark.parametrize("transport", ["gloo", "rpc", "mpi"])
def test_results_may_lie_in_a_directory_of_any_name(tmp_path: Path, transport: str) -> None:
    paths = SweepPaths(tmp_path / "a#b? %20ö [c]")
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": transport, "nodes": 2})
    result = SweepRunner(LocalRuntime(), "local", paths, tmp_path, RecordingDisplay()).run(run)
    assert (result.status, result.cause) == ("ok", None)
    assert [path.name for path in tmp_path.iterdir()] == ["a#b? %20ö [c]"]


def test_a_rank_that_has_ended_does_not_end_one_that_hangs(execute: Execute) -> None:
    """The teardown alarm (10 s) is for ranks with results, not for their neighbours in the process."""
    fault_injection = {"name": "fault_injection", "fault": "stall"}
    result = execute(strategy=fault_injection, transport="memory", nodes=2, timeout_s=12.0)
    assert (result.status, result.cause) == ("timeout", "stopped after 12 s; node 0 last seen training")


@pytest.mark.parametrize(("strategy", "transport"), [("one_shot", "mpi"), ("hogwild", "memory")])
def test_no_run_is_faster_than_its_cores(execute: Execute, strategy: str, transport: str) -> None:
    """Four ranks on the cores there are: their CPU time has to fit into the time that is reported."""
    result = execute(strategy=strategy, transport=transport, nodes=4, epochs=8, model="lenet")
    assert result.status == "ok", result.cause
    assert result.train_s is not None
    work = sum(rank.work_cpu_s for rank in result.ranks)
    assert work / result.cores <= result.train_s * 1.02


def test_a_damaged_event_is_a_failed_run_and_no_more(execute: Execute, tmp_path: Path) -> None:
    display = RecordingDisplay()

    def damage() -> None:
        while not (live := list(tmp_path.glob("results/*/live/rank-0.jsonl"))):
            time.sleep(0.02)
        with open(live[0], "a") as file:
            file.write('{"version": 1, "ti\n')

    threading.Thread(target=damage, daemon=True).start()
    fault_injection = {"name": "fault_injection", "work_s": 2.0}
    result = execute(display, strategy=fault_injection, transport="gloo", nodes=2)
    assert result.status == "failed"
    assert "node 0's events are damaged" in str(result.cause)
