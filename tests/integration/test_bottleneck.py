"""Mistakes of the throttle of slower local nodes: quotas that do not hold, processes left suspended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.results.store import read_usage
from orchestrator.runtimes.local.runtime import POLITE_S, _end
from tests.support.command_line import PROJECT, environment
from tests.support.processes import wait_until
from tests.support.runs import SMALL, execute
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

BUSY = [sys.executable, "-c", "while True: pass"]
# Stands in for an orchestrator: starts the throttle, prints its process ID, and waits.
ORCHESTRATOR = """
import os, subprocess, sys, time
module = "orchestrator.runtimes.local.throttle"
argv = [sys.executable, "-m", module, sys.argv[1], "0.2:node-2:1"]
os.environ["SHARDYARD_PARENT_PID"] = str(os.getpid())
print(subprocess.Popen(argv).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[psutil.Process]:
    """A busy process that has reported as rank 1 that it is ready to train."""
    with subprocess.Popen(BUSY) as process:
        events = [
            Event(time.time(), "run", 1, "host", kind, fields)
            for kind, fields in (("start", {"pid": process.pid}), ("ready", {}))
        ]
        (tmp_path / "rank-1.jsonl").write_text("".join(event.to_line() + "\n" for event in events))
        yield psutil.Process(process.pid)
        process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.fixture
def orchestrator(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", ORCHESTRATOR, str(tmp_path / "usage.jsonl")]
    own = environment(PYTHONPATH=str(PROJECT))
    with subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def throttle_of(orchestrator: subprocess.Popen[str]) -> psutil.Process:
    assert orchestrator.stdout is not None
    return psutil.Process(int(orchestrator.stdout.readline()))


def until_stopped(process: psutil.Process) -> None:
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 30, poll_s=0.002)


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_busy_process_is_limited_to_its_quota_and_its_usage_recorded(
    busy: psutil.Process, orchestrator: subprocess.Popen[str], tmp_path: Path
) -> None:
    throttle = throttle_of(orchestrator)
    until_stopped(busy)
    before, at = used(busy), time.monotonic()
    time.sleep(2.0)
    assert used(busy) - before <= 0.2 * (time.monotonic() - at) + 0.05
    throttle.terminate()
    psutil.wait_procs([throttle], timeout=5)
    assert busy.status() != psutil.STATUS_STOPPED
    (usage,) = read_usage(tmp_path / "usage.jsonl")
    assert isinstance(usage, NodeUsage)
    assert (usage.name, usage.ranks, usage.cpus) == ("node-2", [1], 0.2)
    assert 0 < (usage.cpu_s or 0) < 1
    assert (usage.throttled_s or 0) > 0


def test_throttle_of_a_killed_orchestrator_resumes_its_process(
    busy: psutil.Process, orchestrator: subprocess.Popen[str]
) -> None:
    throttle = throttle_of(orchestrator)
    for _ in range(3):
        until_stopped(busy)
    orchestrator.kill()
    gone, _ = psutil.wait_procs([throttle], timeout=5)
    assert gone or throttle.status() == psutil.STATUS_ZOMBIE  # its new parent may not have reaped it
    assert busy.status() != psutil.STATUS_STOPPED


def test_suspended_process_is_terminated_without_sigkill(busy: psutil.Process) -> None:
    """As left by a killed throttle: a suspended process handles SIGTERM only after SIGCONT."""
    busy.send_signal(signal.SIGSTOP)
    until_stopped(busy)
    started = time.monotonic()
    assert _end([busy]) == 1
    assert time.monotonic() - started < POLITE_S  # without SIGKILL
    assert not busy.is_running()


@pytest.mark.parametrize(
    ("transport", "cold", "speeds"),
    [("gloo", False, [0.5, 0.2, 1]), ("mpi", False, [1, 0.2]), ("gloo", True, [1, 0.2])],
)
def test_ranks_of_slower_nodes_train_within_their_own_quotas(
    tmp_path: Path, transport: str, cold: bool, speeds: list[float]
) -> None:
    """Also if they are forked by warm nodes, and from their first step."""
    dataset = {"name": "synthetic", "samples": 2000 * len(speeds), "test_samples": 64}
    fields = {"nodes": len(speeds), "node_speed": speeds, "epochs": 4, "transport": transport}
    run = RunSpec.model_validate({**SMALL, "strategy": "one_shot", "dataset": dataset, **fields})
    result = execute(run, tmp_path / "results", cold=cold)
    assert (result.status, result.cause, result.warm) == ("ok", None, not cold)
    slow = [(rank, quota) for rank, quota in enumerate(speeds) if quota < 1]
    for usage, (rank, quota) in zip(result.usage, slow, strict=True):
        assert (usage.name, usage.ranks, usage.cpus) == (f"node-{rank + 1}", [rank], quota)
        # On a busy machine, half of a core may be more than a node gets.
        assert quota == 0.5 or (usage.throttled_s or 0) > 0
        # One period more: the quota of the first one may be used before the clock starts.
        assert (result.ranks[rank].work_cpu_s or 0) <= quota * result.ranks[rank].train_s + 0.1
