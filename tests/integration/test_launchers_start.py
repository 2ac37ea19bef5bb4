"""Ranks that a launcher starts, and not Shardyard: they find each other by its variables alone."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT
from trainer.core.events import EventReader
from trainer.launch.launchers import LAUNCHERS, NODELIST_PORTS
from trainer.spec.run_spec import RunSpec

RANK = [sys.executable, "-m", "trainer"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def free_port() -> int:
    """A free port of those that follow from a Slurm job: any, since other tests look for one, too."""
    for port in random.sample(NODELIST_PORTS, len(NODELIST_PORTS)):
        with socket.socket() as listening:
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def variables_of(launcher: str, rank: int, port: int) -> dict[str, str]:
    """The variables of rank `rank` of 2, on this machine."""
    match launcher:
        case "slurm":
            return {
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": str(port - NODELIST_PORTS[0]),
                "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
            }
        case "kubernetes":
            master = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            return {"JOB_COMPLETION_INDEX": str(rank), "NNODES": "2", **master}
    raise AssertionError(launcher)


def train(
    tmp_path: Path, spec: RunSpec, processes: Sequence[tuple[list[str], dict[str, str]]]
) -> list[str]:
    """Start the processes, and wait for all. Returns their output."""
    file = tmp_path / "spec.json"
    file.write_text(spec.model_dump_json())
    # Without the variables of a launcher that started the tests.
    names = {name for each in LAUNCHERS.values() for name in (*each.number, *each.count)}
    own = {name: value for name, value in os.environ.items() if name not in names}
    common = {"SHARDYARD_SPEC": str(file), "SHARDYARD_OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**own, **common, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, variables in processes
    ]
    try:
        return [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def ended(directory: Path) -> list[tuple[int, str]]:
    """The exit report of each rank."""
    kinds = ("done", "failed", "terminated")
    return sorted((each.rank, each.kind) for each in EventReader(directory).new() if each.kind in kinds)


def run(**fields: object) -> RunSpec:
    values = {"strategy": "all_reduce", "transport": "gloo", "epochs": 1, "model": "mlp", "timeout_s": 60}
    return RunSpec.model_validate({**values, **fields})


@pytest.mark.parametrize(("launcher", "transport"), [("slurm", "gloo"), ("kubernetes", "rpc")])
def test_one_process_for_each_rank(tmp_path: Path, launcher: str, transport: str) -> None:
    port = free_port()
    processes = [(RANK, variables_of(launcher, rank, port)) for rank in range(2)]
    output = train(tmp_path, run(nodes=2, transport=transport), processes)
    assert ended(tmp_path) == [(0, "done"), (1, "done")], "\n".join(output)


@pytest.mark.nightly
def test_torchrun_on_a_node_of_an_indexed_job(tmp_path: Path) -> None:
    """torchrun reads the PET_* variables, and its ranks torchrun's."""
    node = {
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        "JOB_COMPLETION_INDEX": "0",
    }
    output = train(tmp_path, run(processes_per_node=2), [([*TORCHRUN, "-m", "trainer"], node)])
    assert ended(tmp_path) == [(0, "done"), (1, "done")], "\n".join(output)


def test_an_environment_without_a_launcher_is_refused(tmp_path: Path) -> None:
    (output,) = train(tmp_path, run(nodes=2), [(RANK, {})])
    assert "RANK is not set" in output
    assert "Traceback" not in output
