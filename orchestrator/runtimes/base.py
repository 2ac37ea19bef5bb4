"""Interface of a runtime: it executes launch plans and leaves nothing behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.results.environment import cores
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.sandbox.base import Sandbox
from orchestrator.sweeps.imports import Inspection, local_sandbox
from orchestrator.sweeps.slurm import SlurmOptions
from orchestrator.sweeps.swarm import SwarmOptions
from trainer.core.events import Event
from trainer.core.processes import Suspended
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class RunState:
    """State of a run's processes.

    exits: exit codes of ended processes by name; negative: killed by that signal. running: number of
    processes that still run. error: an error that the runtime itself found; waiting longer is useless.
    nodes_lost: the error is the loss of warm nodes, so the run can be repeated on new ones.
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


class RunHandle(AbstractContextManager["RunHandle"]):
    """A started run. Leaving the block always stops it.

    Attributes:
        replaced: why warm nodes were replaced before the run; None if they were not. Known after `collect`.
        requeues: why a batch system started the run again, one for each time. Known after `collect`.
        engine_start_s, engine_stop_s: seconds in which an engine started and stopped the run's containers.
    """

    replaced: str | None = None
    requeues: Sequence[str] = ()
    engine_start_s: float = 0.0
    engine_stop_s: float = 0.0

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
    def collect(self, paths: RunPaths) -> None:
        """Move logs, events and weights to their final paths. Called once, after `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all that still runs, within seconds. Idempotent. Returns when nothing is left."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Runtime(ABC):
    """Runs nodes, as processes or containers."""

    info: RuntimeInfo

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        """
        Args:
            cold: Start all processes afresh for every run.
            shared_network: Local nodes use the network of this machine. Containers never do.
        """
        self.cold, self.shared_network = cold, shared_network

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why this runtime cannot be used on this machine; None if it can."""

    @abstractmethod
    def node_kind(self) -> str:
        """The kind of node in a few words, e.g. `local processes`."""

    def cores(self) -> float:
        """Processor cores that all nodes of a run share."""
        return cores()

    def environment(self) -> dict[str, Any]:
        """Software on the nodes, in addition to the orchestrator's, for the `environment` of results."""
        return {}

    def configure(self, slurm: SlurmOptions, swarm: SwarmOptions) -> None:  # noqa: B027
        """Take the options of the sweep file, of which a runtime uses its own."""

    @abstractmethod
    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Why this machine cannot execute the run, and how to fix that; None if it can."""

    def inspection_sandbox(self, inspection: Inspection) -> Sandbox:
        """Where users' components are tried, with the software of the nodes. Raises InputError."""
        return local_sandbox(inspection)

    def expect(self, runs: Sequence[RunSpec], data_dir: Path) -> None:  # noqa: B027
        """Note the runs to come, so that warm nodes are started for the largest. Starts nothing.

        Raises InputError if nodes cannot read the data of one.
        """

    def warm_groups(self, runs: Sequence[RunSpec], data_dir: Path) -> list[list[RunSpec]]:
        """The runs in groups; the nodes for all runs of a group can be warm at the same time."""
        return [list(runs)]

    @abstractmethod
    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        """The exact commands that `start` executes. Starts nothing and writes nothing."""

    @abstractmethod
    def start(self, plan: LaunchPlan) -> RunHandle:
        """Execute a plan of this runtime and return at once. The run's directory exists."""

    def close(self) -> None:  # noqa: B027
        """End warm nodes, if the runtime has any. Idempotent."""

    @abstractmethod
    def clean(self) -> int:
        """Remove leftovers of orchestrators that have ended, found by label. Returns their number."""
