"""What a runtime is: it starts a plan, and leaves nothing behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from orchestrator.results.environment import cores
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class RunState:
    """exits: the exit code of every process that has ended, by name; negative: killed by that signal.

    trouble: what the runtime itself knows to be wrong, so that waiting longer is of no use.
    """

    exits: Mapping[str, int]
    running: int
    trouble: str | None = None

    @property
    def failing(self) -> bool:
        return any(self.exits.values())


class RunHandle(AbstractContextManager["RunHandle"]):
    """A run that has been started. Leaving the block always stops it."""

    @abstractmethod
    def wait(self, timeout_s: float) -> RunState:
        """The state after a process has ended or `timeout_s` has passed, whichever is first."""

    @abstractmethod
    def new_events(self) -> list[Event]:
        """The events since the last call, in order of time."""

    @abstractmethod
    def collect(self, paths: RunPaths) -> None:
        """Bring logs, events and weights to where they stay. Called once, after `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """End what still runs, within some seconds. Idempotent. Returns when nothing is left."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Runtime(ABC):
    """Where nodes run."""

    info: ClassVar[RuntimeInfo]

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why this runtime cannot be used on this machine; None if it can."""

    @abstractmethod
    def node_kind(self) -> str:
        """What the nodes are, in a few words, e.g. `local processes`."""

    def cores(self) -> float:
        """Processor cores that all nodes of a run share."""
        return cores()

    def environment(self) -> dict[str, Any]:
        """What a reader must know of the software on the nodes, beside that of the orchestrator."""
        return {}

    @abstractmethod
    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Why this machine cannot execute the run, and how to fix that; None if it can."""

    @abstractmethod
    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        """The exact commands that `start` executes. Starts nothing and writes nothing."""

    @abstractmethod
    def start(self, plan: LaunchPlan) -> RunHandle:
        """Execute a plan of this runtime and return at once. The run's directory exists."""

    @abstractmethod
    def clean(self) -> int:
        """Remove what orchestrators that are gone have left behind, by label; how much it was."""
