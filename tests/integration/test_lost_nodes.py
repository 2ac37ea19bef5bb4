"""Mistakes about ranks that are lost: the cause, restarts, checkpoints, what is left behind."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support import runs
from tests.support.command_line import end, run_ok, start_sweep
from tests.support.nightly import nightly
from tests.support.processes import connections, node_processes, starts, wait_until
from tests.support.runs import (
    SMALL,
    RecordingDisplay,
    RunCache,
    digests,
    events_of,
    killing,
    killing_early,
    only_result,
    write_sweep,
)
from trainer.core.events import Event
from trainer.launch.ranks import TEARDOWN_S
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., RunResult]


# One strategy for each way to wait for peers: each transport's collectives, its send and receive, and
# torch's collectives, pipelines and shared memory; masters, servers, and several ranks in a node.
@pytest.mark.parametrize(
    ("strategy", "transport", "doomed", "per_node"),
    [
        ("all_reduce", "mpi", 1, 1),
        ("fsdp", "gloo", 1, 1),
        ("pipeline", "gloo", 1, 1),
        ("hogwild", "memory", 1, 1),
        ("async_parameter_server", "rpc", 0, 1),
        ({"name": "async_parameter_server", "max_staleness": 0}, "rpc", 2, 1),
        ("rpc_split", "rpc", 2, 1),
        ("all_reduce", "gloo", 2, 2),
        *nightly(
            ("rpc_split", "rpc", 0, 1),
            ("all_reduce", "mpi", 2, 2),
            ("hogwild", "memory", 2, 2),
            ("all_reduce", "gloo", 1, 1),
            ("all_reduce", "rpc", 1, 1),
            ("ddp", "gloo", 1, 1),
            ("pipeline", "mpi", 1, 1),
            ("pipeline_torch", "gloo", 1, 1),
        ),
    ],
    ids=str,
)
def test_killed_rank_is_named(
    execute: Execute, strategy: Any, transport: str, doomed: int, per_node: int
) -> None:
    """The others stop without waiting for the timeout."""
    nodes = 3 if per_node == 1 else 2
    display = killing(doomed, ranks=nodes * per_node)
    fields = {"strategy": strategy, "transport": transport, "nodes": nodes, "processes_per_node": per_node}
    result = execute(display, **fields, epochs=5000)
    assert result.status == "failed"
    # With mpirun, which kills the others, several ranks may be named.
    cause = str(result.cause) if transport == "mpi" else str(result.cause).split(" and ")[0]
    name = f"node {doomed}" if per_node == 1 else f"rank {doomed} of node {doomed // per_node}"
    assert f"{name} (process {display.pid})" in cause
    assert "SIGKILL" in str(result.cause)
    assert result.started_at + result.wall_s - display.at < (10 if transport == "rpc" else 60)


@pytest.mark.parametrize(("kind", "ranks"), [("start", 0), ("start", 1)], ids=["at-start", "at-rendezvous"])
@pytest.mark.parametrize("transport", ["gloo", *nightly("mpi", "rpc")])
def test_rank_killed_before_training_is_named(
    execute: Execute, tmp_path: Path, transport: str, kind: str, ranks: int
) -> None:
    """Alone, though its peers may report that it did not join, or not even start."""
    display = killing_early(tmp_path, 1, kind, ranks)
    result = execute(display, strategy="all_reduce", transport=transport, nodes=3, epochs=5000)
    assert (result.status, display.pid > 0) == ("failed", True)
    named = r"node 1\b(?! and).* was killed by SIGKILL"
    if any(log.stat().st_size == 0 for log in tmp_path.rglob("launcher.log")):
        # mpirun kills the other ranks, and sometimes ends without a word on which one it had lost. The
        # parent of warm nodes knows a rank that was killed, but here its client was.
        named = r"one of .*\bnode 1\b.* was killed by SIGKILL"
    assert re.match(named, str(result.cause)), result.cause


def test_terminated_rank_is_the_cause_not_the_lost_connections(execute: Execute) -> None:
    display = killing(1, signal.SIGTERM, ranks=2)
    result = execute(display, strategy="all_reduce", transport="gloo", nodes=2, epochs=5000)
    assert result.status == "failed"
    assert str(result.cause).startswith(f"node 1 (process {display.pid})")
    assert "SIGTERM" in str(result.cause)
    assert "node 0" not in str(result.cause)


def test_suspended_rank_is_killed_at_the_timeout(execute: Execute) -> None:
    """After SIGSTOP, a process does not handle SIGTERM."""
    display = killing(0, signal.SIGSTOP, ranks=1, kind="start")
    fields = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 5000}
    result = execute(display, **fields, timeout_s=starts(4))
    assert result.status == "timeout"
    assert f"node 0 (process {display.pid})" in str(result.cause)
    assert "node 1" not in str(result.cause)


@pytest.mark.nightly
def test_rank_that_hangs_outlives_ranks_that_have_finished(execute: Execute) -> None:
    """The teardown alarm applies to ranks with results, not to other ranks in the same process."""
    limit_s = TEARDOWN_S + starts(2)
    strategy = {"name": "fault_injection", "fault": "stall"}
    result = execute(strategy=strategy, transport="memory", nodes=2, timeout_s=limit_s)
    assert result.status == "timeout"
    assert f"{limit_s:.0f} s" in str(result.cause)
    assert "node 0" in str(result.cause)


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_results_directory_may_have_any_name(tmp_path: Path, transport: str) -> None:
    directory = tmp_path / "a#b? %20ö [c]"
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": transport, "nodes": 2})
    result = runs.execute(run, directory)
    assert (result.status, result.cause) == ("ok", None)
    assert list(tmp_path.iterdir()) == [directory]


# torchrun restarts all ranks. These moments have caused failures; tests/faults draws random ones.


@pytest.mark.parametrize(
    ("fields", "rank", "kind", "ranks", "seen"),
    [
        *nightly(
            ({"strategy": "all_reduce", "nodes": 2}, 0, "start", 0, "before it started"),
            ({"strategy": "ddp", "nodes": 2}, 1, "start", 2, "starting"),
        ),
        (
            {"strategy": "all_reduce", "nodes": 1, "processes_per_node": 2, "epochs": 300},
            *(1, "epoch", 2, "epoch"),
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
    kind: str,
    ranks: int,
    seen: str,
) -> None:
    run = {"epochs": 60, **fields}
    transport = "gloo" if run["strategy"] == "ddp" else "memory"
    undisturbed = run_cache.get(transport=transport, **run).result
    display = killing_early(tmp_path, rank, kind, ranks)
    result = execute(display, **run, transport="gloo", restarts=2)
    assert display.pid
    assert (result.status, result.cause, result.warm) == ("ok", None, False)  # torchrun starts the ranks
    assert (result.replicas_equal, result.restarted) == (True, 1)
    assert digests(result)[0] == digests(undisturbed)[0]
    assert result.accuracy == undisturbed.accuracy
    name = f"rank {rank} of node 0" if "processes_per_node" in fields else f"node {rank}"
    (flag,) = [flag for flag in result.flags if "all ranks were restarted" in flag]
    # An agent reports the signal of one rank; with several ranks, that can be a peer that failed first.
    known = ["killed by SIGKILL"] + ["lost without an exit report"] * ("processes_per_node" in fields)
    assert flag.startswith(tuple(f"{name} was {how}, last seen " for how in known))
    assert seen in flag
    assert flag.endswith("; all ranks were restarted (1 of 2 restarts)")


@pytest.mark.nightly
def test_rank_killed_after_the_last_barrier_does_not_fail_the_run(execute: Execute) -> None:
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


def test_agents_end_with_the_orchestrator_and_restart_nothing(tmp_path: Path) -> None:
    strategy = {"name": "fault_injection", "work_s": 300}
    run = {"strategy": strategy, "transport": "gloo", "nodes": 2, "restarts": 9}
    sweep = start_sweep(write_sweep(tmp_path / "long.yml", run), tmp_path / "out")
    wait_until(lambda: len(node_processes(tmp_path)) == 4)  # two agents, two ranks
    end(sweep, signal.SIGKILL)
    wait_until(lambda: node_processes(tmp_path) == [], timeout_s=30)
    run_ok("clean")


# Checkpoints

RESUMED: dict[str, Any] = {
    "strategy": "ddp",
    "transport": "gloo",
    "nodes": 3,  # with 2 nodes, sums would not depend on the order of DDP's buckets
    "dataset": {"name": "synthetic", "samples": 2000, "test_samples": 50, "noise": 1.0},
    "model": {"name": "lenet", "dropout": 0.3},
    "optimizer": "momentum",
    "lr": 0.01,
    "batch_size": 10,
    "checkpoint_steps": 20,
    "epochs": 4,
}


@pytest.mark.parametrize(
    "fields",
    [{}, *nightly(*({"strategy": each, "optimizer": "adam"} for each in ("zero1", "fsdp")))],
    ids=str,
)
def test_sweep_whose_orchestrator_was_killed_resumes_to_the_same_weights(
    fields: dict[str, str], run_cache: RunCache, tmp_path: Path
) -> None:
    run = {**RESUMED, **fields}
    file, out = write_sweep(tmp_path / "one.yml", run), tmp_path / "out"
    sweep = start_sweep(file, out)
    # In the second epoch: one epoch has been evaluated and another is in progress.
    wait_until(lambda: list(out.glob("*/checkpoints/local/epoch-00001-step-*/rank-2.pt")))
    end(sweep, signal.SIGKILL)
    wait_until(lambda: not node_processes(out))
    assert not list(out.glob("*/result.json"))

    run_ok("sweep", file, "--out", out)
    resumed, whole = only_result(out), run_cache.get(**run).result
    events = events_of(out / resumed.key)
    points = [event.fields for event in events if event.kind == "resumed"]
    assert len(points) == 3
    ((epoch, _),) = {(each["epoch"], each["step"]) for each in points}
    assert epoch >= 1
    assert digests(resumed) == digests(whole)
    assert resumed.certificate == whole.certificate
    counts, curves = (
        [[(r.steps, r.samples, r.bytes_sent) for r in each.ranks] for each in (resumed, whole)],
        [[(e.epoch, e.accuracy) for e in each.epochs] for each in (resumed, whole)],
    )
    assert counts[0] == counts[1]
    assert curves[0] == curves[1]
    assert "resumed from a checkpoint once" in resumed.flags[-1]
    assert not any("checkpoint" in flag for flag in whole.flags)
    assert not list(tmp_path.glob("*/*/checkpoints"))  # removed after the run


@pytest.mark.parametrize("transport", ["mpi", *nightly("gloo", "rpc")])
def test_run_that_lost_a_node_resumes(execute: Execute, run_cache: RunCache, transport: str) -> None:
    own = {"strategy": "all_reduce", "transport": transport, "nodes": 2, "epochs": 5}
    run = RESUMED | own | {"checkpoint_steps": None, "checkpoint_epochs": 1}
    lost = execute(killing(1, ranks=1, kind="checkpoint"), **run)
    assert lost.status == "failed"
    assert "node 1" in str(lost.cause)
    resumed = execute(**run)
    assert (resumed.status, resumed.cause) == ("ok", None)
    assert "resumed from a checkpoint once" in resumed.flags[-1]
    assert [epoch.epoch for epoch in resumed.epochs] == [*range(1, 6)] * 2
    # Two ranks: on every transport the sum of two numbers is the same, bit for bit.
    assert digests(resumed) == digests(run_cache.get(**{**run, "transport": "memory"}).result)
