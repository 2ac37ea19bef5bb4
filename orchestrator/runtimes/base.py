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
    def unavailable(self) -> str | None:
        """Why this runtime cannot run anything here, or None. Asks the engine itself."""

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
    def lacks(self, plan: LaunchPlan) -> str | None:
        """What this plan needs and this machine has not, and how to get it; or None."""

    @abstractmethod
    def describe(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> dict[str, Any]:
        """Exactly what `start` will start. Starts nothing."""

    @abstractmethod
    def start(self, plan: LaunchPlan, paths: RunPaths, data_dir: Path) -> RunHandle:
        """Start the plan's nodes and return at once. `paths.directory` exists and is the run's own."""

    @abstractmethod
    def clean(self) -> int:
        """Remove what orchestrators that are gone have left behind, by label; how much it was."""
