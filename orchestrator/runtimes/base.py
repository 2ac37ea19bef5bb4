"""Interface of a runtime: it creates clusters, which execute runs, and leaves nothing behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import InputError
from orchestrator.results.environment import cores
from orchestrator.results.records import RunResult, RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.finding import Finding
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.sandbox.base import Program, Sandbox
from orchestrator.sweeps.trials import local_sandbox
from trainer.core.events import Event
from trainer.core.processes import Suspended
from trainer.spec.run_spec import RunSpec

MAX_REAL_NODES = 1024  # of a run whose nodes are processes or containers


@dataclass(frozen=True)
class RunState:
    """State of a run's processes.

    exits: exit codes of ended processes by name; negative: killed by that signal. running: number of
    processes that still run. error: an error that the runtime itself found; waiting longer is useless.
    nodes_lost: the error is the loss of the cluster, so the run can be repeated on a new one.
    waiting: the run is in the queue of a batch system, which does not count towards its time limit.
    """

    exits: Mapping[str, int]
    running: int
    error: str | None = None
    nodes_lost: bool = False
    waiting: bool = False

    @property
    def failing(self) -> bool:
        return any(self.exits.values())


class Run(AbstractContextManager["Run"]):
    """A run that has started on a cluster. Leaving the block always stops it.

    Attributes:
        replaced: why nodes of the cluster were replaced before the run; None if they were not. Known after
            `collect`.
        requeues: why a batch system started the run again, one for each time. Known after `collect`.
    """

    replaced: str | None = None
    requeues: Sequence[str] = ()

    @abstractmethod
    def wait(self, timeout_s: float) -> RunState:
        """The state once a process has ended or `timeout_s` has passed."""

    @abstractmethod
    def new_events(self) -> list[Event]:
        """The events since the last call, in order of time."""

    @abstractmethod
    def suspended(self) -> Suspended:
        """PIDs of the ranks that are stopped by a signal, by rank, and that of mpirun, if it is."""

    @abstractmethod
    def collect(self) -> list[Event]:
        """Move logs, events and weights to their final paths. Called once, after `stop`.

        Returns all events of the run, see `in_order`.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop all processes of the run, within seconds. Idempotent. The cluster may keep its nodes."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Cluster(ABC):
    """Nodes that execute a run, or several, one after the other, until the cluster is deleted.

    Attributes:
        failure: why it takes no more runs, as `ready` has found it; None if it has not failed.
        engine_start_s, engine_stop_s: seconds in which an engine started and stopped its containers.
    """

    failure: str | None = None
    engine_start_s: float = 0.0
    engine_stop_s: float = 0.0

    @abstractmethod
    def run(self, plan: LaunchPlan) -> Run:
        """Start a run, whose plan has this cluster, and return at once. The run's directory exists."""

    def ready(self) -> bool:
        """Whether it can take another run. Nodes that have ended after an idle time are no failure."""
        return True

    @abstractmethod
    def delete(self) -> None:
        """Stop and remove all of it, within seconds. Idempotent. Returns when nothing is left."""


class NoOptions(BaseModel):
    """Options of a runtime that has none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Runtime(ABC):
    """Runs nodes, as processes or containers.

    Attributes:
        info: what it can do.
        Options: its key in a sweep file has these fields.
        max_warm_nodes: the most nodes of all shared clusters together; None: any number.
        confines: whether users' code runs in containers alone, also while it is tried.
    """

    info: RuntimeInfo
    confines: ClassVar[bool] = False
    Options: ClassVar[type[BaseModel]] = NoOptions
    max_warm_nodes: int | None = None

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        """
        Args:
            cold: Start all processes afresh for every run.
            shared_network: Local nodes use the network of this machine. Containers never do.
        """
        self.cold, self.shared_network = cold, shared_network
        self.options: BaseModel = self.Options()

    def configure(self, options: BaseModel) -> None:
        """Take the options of a sweep file, which are an instance of `Options`."""
        self.options = options

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why this runtime cannot be used on this machine; None if it can."""

    def findings(self) -> Iterator[Finding]:
        """What `doctor` says about it."""
        return iter(())

    @abstractmethod
    def node_kind(self) -> str:
        """The kind of node in a few words, e.g. `local processes`."""

    def cores(self) -> float:
        """Processor cores that all nodes of a run share."""
        return cores()

    def environment(self) -> dict[str, Any]:
        """Software on the nodes, in addition to the orchestrator's, for the `environment` of results."""
        return {}

    def can_reuse(self, result: RunResult) -> bool:
        """Whether an earlier result of a run is what its nodes would give now, apart from the noise."""
        return result.runtime_info.trains

    @abstractmethod
    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Why this machine cannot execute the run, and how to fix that; None if it can."""

    def _too_many_nodes(self, spec: RunSpec) -> str | None:
        if spec.nodes <= MAX_REAL_NODES or self.info.simulates_time:
            return None
        return f"nodes is {spec.nodes:,}; allowed: at most {MAX_REAL_NODES:,}, or --runtime virtual"

    def refusal(self, spec: RunSpec) -> str | None:
        """Why the run cannot be executed here with the runtime's options; None if it can."""
        return self._too_many_nodes(spec) or self.unsupported_reason(spec)

    def check(self, runs: Sequence[RunSpec], data_dir: Path) -> None:
        """Check that the runs can be executed. Raises InputError."""
        for run in runs:
            if reason := self.refusal(run):
                raise InputError(f"{run.key}: {reason}")
        self.check_together(runs, data_dir)

    def check_together(self, runs: Sequence[RunSpec], data_dir: Path) -> None:  # noqa: B027
        """Check what the runs of a sweep need together, before a dry run, too. Raises InputError."""

    def sandbox(self, program: Program) -> Sandbox:
        """Where code that is not ours is tried, with the software of the nodes. Raises InputError."""
        return local_sandbox(program)

    def remove_sandboxes(self) -> None:  # noqa: B027
        """Remove what is left of sandboxes. Nothing else that this process has started may run."""

    def kind(self, spec: RunSpec) -> Hashable | None:
        """What runs have in common that can share a cluster; None: the run gets a cluster of its own."""
        return None

    def size(self, spec: RunSpec) -> int:
        """The number of nodes that a shared cluster needs for the run."""
        return spec.nodes

    @abstractmethod
    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        """All that `create` and the cluster's `run` start. Starts nothing and writes nothing.

        Args:
            spec: the run.
            paths: the paths of its results.
            data_dir: the directory of the datasets.
            peers: the runs that can share its cluster, which is large enough for all of them.

        Raises:
            InputError: The run cannot be started now.
        """

    @abstractmethod
    def create(self, plan: LaunchPlan) -> Cluster:
        """Start the cluster of a plan of this runtime, and return at once. The run's directory exists.

        Raises:
            InputError: It cannot be started; the message says why.
        """

    def close(self) -> None:  # noqa: B027
        """Release what all clusters use. Idempotent. They are deleted."""

    @abstractmethod
    def clean(self) -> int:
        """Remove leftovers of orchestrators that have ended, found by label. Returns their number."""
