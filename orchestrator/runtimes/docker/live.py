"""The run record that the coordinator of a run in progress writes, as the orchestrator reads it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.live_run import write_events
from trainer.core.events import Event, EventReader
from trainer.core.processes import Suspended
from trainer.node.hand_over import ALIVE, ENDED, SUSPENDED, Ending
from trainer.node.heartbeat import COORDINATOR_STUCK_S, Silence
from trainer.node.rank_assignment import AgentInfo, node_name

_AGENTS = TypeAdapter(list[AgentInfo])
_PIDS = TypeAdapter(Suspended)


class LiveRecord:
    """A directory to which the coordinator writes events, rank assignment, usage, weights and summary."""

    def __init__(self, directory: Path, coordinator_is_up: bool = False) -> None:
        """coordinator_is_up: so that its first heartbeat is due, too."""
        self.directory = directory
        self._beats = coordinator_is_up
        self._last_beat: int | None = None  # time in ns, by the clock of the coordinator
        self._silence = Silence()
        self._reader = EventReader(directory)
        self._ready: set[int] = set()

    def _read(self) -> None:
        self._ready |= {event.rank for event in self._reader.new() if event.kind == "ready"}

    def new_events(self) -> list[Event]:
        """The events since the last call, in order of time."""
        self._read()
        return self._reader.untold()

    def are_ready(self, ranks: int) -> bool:
        """Whether this many ranks are ready to train."""
        self._read()
        return len(self._ready) == ranks

    def coordinator_trouble(self) -> str | None:
        """Look for a heartbeat of the coordinator, every second or more often.

        Returns:
            That it is stuck though its container runs; None if it is not, or if it still starts.
        """
        beat = self._last_beat
        with suppress(OSError):
            beat = (self.directory / ALIVE).stat().st_mtime_ns
        if beat != self._last_beat:
            self._beats, self._last_beat = True, beat
            self._silence.end()
        stuck = self._silence.look() > COORDINATOR_STUCK_S and self._beats
        return f"is stuck: no heartbeat for {COORDINATOR_STUCK_S:g} s" if stuck else None

    @property
    def started(self) -> set[int]:
        """The ranks that have reported their start."""
        self._read()
        return {event.rank for event in self._reader.events if event.kind == "start"}

    @property
    def agents(self) -> list[AgentInfo]:
        """The agents of the rank assignment; empty before ranks are assigned."""
        try:
            return _AGENTS.validate_json((self.directory / "assignment.json").read_text())
        except (OSError, ValueError):
            return []

    @property
    def suspended(self) -> Suspended:
        """See `Run.suspended`, as of the last heartbeats."""
        try:
            return _PIDS.validate_json((self.directory / SUSPENDED).read_bytes())
        except (OSError, ValueError):  # none ever was
            return {}

    @property
    def mpirun_exit(self) -> dict[str, int]:
        """The exit code of mpirun under its name, if it has failed and the coordinator has ended."""
        exits = self._ending.exits if self._ending else {}
        return {name: code for name, code in exits.items() if name == "mpirun"}

    @property
    def _ending(self) -> Ending | None:
        """How the run has ended, if the coordinator has ended it."""
        try:
            return Ending.model_validate_json((self.directory / ENDED).read_text())
        except (OSError, ValueError):
            return None

    def unreported(self, topology: str) -> str | None:
        """The first cause that no event reports, with the name of its node; None if the run has none."""
        if not (ending := self._ending):
            return None
        agents = self.agents
        names = {agent.name: node_name(agent.role, agent.ordinal, agents, topology) for agent in agents}
        causes = [f"{names.get(name, name)}: {cause}" for name, cause in ending.unreported.items()]
        return next(iter(causes), None)

    @property
    def registration_error(self) -> str:
        """Why no ranks were assigned, from the coordinator's summary."""
        try:
            return (self.directory / "summary.txt").read_text().strip().removeprefix("FAILED: ")
        except OSError:
            return "the coordinator exited before it assigned ranks; its log says why"

    def collect(self, paths: RunPaths) -> list[Event]:
        """Move events, weights, usage and traces to their final paths, and remove the rest."""
        self._read()
        events = write_events(paths.events, self._reader.events)
        ranks = [rank for agent in self.agents for rank in agent.ranks]
        for kept in (paths.weights, paths.usage, *map(paths.trace, ranks)):
            with suppress(FileNotFoundError):
                shutil.move(self.directory / kept.name, kept)
        shutil.rmtree(self.directory, ignore_errors=True)
        return events
