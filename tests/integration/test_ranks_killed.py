"""Killed ranks: torchrun restarts all ranks, and the run ends with the same weights.

These moments have caused failures; the rows `restart` of tests/faults draw random ones.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support.command_line import run_cli, start_sweep
from tests.support.nightly import nightly
from tests.support.processes import connections, node_processes, wait_until
from tests.support.rank_killer import RankKiller, When, always, kill_process, reported
from tests.support.runs import RecordingDisplay, RunCache
from trainer.core.events import Event

Execute = Callable[..., RunResult]


@pytest.mark.parametrize(
    ("fields", "rank", "when", "seen"),
    [
        *nightly(
            ({"strategy": "all_reduce", "nodes": 2}, 0, always, "before it started"),
            ({"strategy": "ddp", "nodes": 2}, 1, reported("start", 2), "starting"),
        ),
        (
            {"strategy": "all_reduce", "nodes": 1, "processes_per_node": 2, "epochs": 300},
            *(1, reported("epoch", 2), "epoch"),
        ),
    ],
    ids=["at-process-start", "at-rendezvous", "in-training"],
)
def test_restarted_run_ends_with_the_same_weights(
    execute: Execute,
    run_cache: RunCache,
    tmp_path: Path,
    fields: dict[str, Any],
    rank: int,
    when: When,
    seen: str,
) -> None:
    run = {"epochs": 60, **fields}
    transport = "gloo" if run["strategy"] == "ddp" else "memory"
    undisturbed = run_cache.get(transport=transport, **run).result
    with RankKiller(kill_process(tmp_path), rank, when=when) as killer:
        result = execute(killer, **run, transport="gloo", restarts=2)
    assert killer.killed
    assert (result.status, result.cause, result.warm) == ("ok", None, False)  # torchrun starts the ranks
    assert result.replicas_equal
    assert result.ranks[0].weights_digest == undisturbed.ranks[0].weights_digest
    assert result.accuracy == undisturbed.accuracy
    assert result.restarted == 1
    name = f"rank {rank} of node 0" if "processes_per_node" in fields else f"node {rank}"
    (flag,) = [flag for flag in result.flags if "all ranks were restarted" in flag]
    # An agent reports the signal of one rank; with several ranks, that can be a peer that failed first.
    known = ["killed by SIGKILL"] + ["lost without an exit report"] * ("processes_per_node" in fields)
    assert flag.startswith(tuple(f"{name} was {how}, last seen " for how in known))
    assert seen in flag
    assert flag.endswith("; all ranks were restarted (1 of 2 restarts)")
    assert node_processes(tmp_path) == []


@pytest.mark.nightly
def test_rank_killed_after_the_last_barrier_does_not_fail_the_run(execute: Execute, tmp_path: Path) -> None:
    """Rank 1 is suspended at the barrier, the others end, and it is killed: its agent finds no peer."""
    display = RecordingDisplay()

    def event(kind: str, rank: int) -> Event:
        return wait_until(lambda: next((e for e in display.seen if (e.kind, e.rank) == (kind, rank)), None))

    def act() -> None:
        first, late = (event("start", rank).fields["pid"] for rank in (1, 2))
        os.kill(late, signal.SIGSTOP)
        event("result", 1)
        wait_until(lambda: connections(first))  # to the store of the barrier
        time.sleep(0.5)
        os.kill(first, signal.SIGSTOP)
        os.kill(late, signal.SIGCONT)
        event("done", 0)
        os.kill(first, signal.SIGKILL)

    threading.Thread(target=act, daemon=True).start()
    fault_injection = {"name": "fault_injection", "work_s": 3.0}
    result = execute(display, strategy=fault_injection, transport="gloo", nodes=3, restarts=1)
    assert (result.status, result.cause, result.restarted) == ("ok", None, 0)
    assert result.flags[-1] == "node 1 was killed after its result was written"
    assert node_processes(tmp_path) == []


@pytest.mark.nightly
def test_restarts_are_used_up(execute: Execute, tmp_path: Path) -> None:
    fault_injection = {"name": "fault_injection", "fault": "kill", "rank": 1}
    result = execute(strategy=fault_injection, transport="gloo", nodes=2, restarts=1)
    assert result.status == "failed"
    assert str(result.cause).startswith("node 1 (process ")
    assert str(result.cause).endswith(") was killed by SIGKILL, after 1 restart")
    assert node_processes(tmp_path) == []


def test_agents_end_with_the_orchestrator_and_restart_nothing(tmp_path: Path) -> None:
    file = tmp_path / "long.yml"
    run = "{strategy: {name: fault_injection, work_s: 300}, transport: gloo, nodes: 2, restarts: 9}"
    file.write_text(f"name: long\nblocks: [{{base: {run}}}]\n")
    sweep = start_sweep(file, tmp_path / "out")
    wait_until(lambda: len(node_processes(tmp_path)) == 4)  # two agents, two ranks
    sweep.kill()
    sweep.communicate()
    wait_until(lambda: node_processes(tmp_path) == [], timeout_s=30)
    assert run_cli("clean").returncode == 0
