"""A run whose ranks write to the directory `live`, and what the orchestrator reads and keeps of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.results.store import RunPaths, write_atomic
from orchestrator.runtimes.base import Run
from orchestrator.runtimes.launch_plan import LaunchPlan, rank_name
from trainer.core.events import Event, EventReader, damage, in_order, make_files
from trainer.core.processes import Suspended
from trainer.spec.output_limits import OutputLimits


def make_live(paths: RunPaths, ranks: int) -> None:
    """Make the directory, and in it the file of each rank: one that is missing later was removed."""
    paths.live.mkdir()
    make_files(paths.live, range(ranks))


def write_events(path: Path, events: list[Event]) -> list[Event]:
    """Write all events of a run in their order, see `in_order`. Returns them."""
    events = in_order(events)
    write_atomic(path, "".join(event.to_line() + "\n" for event in events))
    return events


class LiveRun(Run):
    """A run whose ranks write to a directory of this machine: what they write is checked here."""

    def __init__(self, plan: LaunchPlan) -> None:
        """plan: its directory `live` is there."""
        self._plan, self._paths = plan, plan.paths
        self._limits = OutputLimits.of(plan.spec, plan.requeues)
        ranks, most = self._limits.ranks, self._limits.event_bytes
        self._reader = EventReader(plan.paths.live, ranks, most, self._limits.restarts, made=range(ranks))
        self._damage: str | None = None

    def _read(self) -> list[Event]:
        """The events since the last call."""
        events = self._reader.new()
        damaged = [event for event in events if event.kind == "damaged"]
        # With restarts, a killed rank may leave an incomplete line, which does not matter.
        if damaged and (not self._plan.spec.restarts or self._reader.has_given_up):
            rank = rank_name(damaged[-1].rank, self._plan.spec.processes_per_node)
            self._damage = damage(damaged[-1], rank)
        return events

    def new_events(self) -> list[Event]:
        self._read()
        return self._reader.untold()

    @property
    def _trouble(self) -> str | None:
        """What is wrong with what ranks have written; None if nothing is."""
        return self._damage or next((reason for _, _, reason in self._excess()), None)

    def _excess(self) -> Iterator[tuple[int, Path, str]]:
        """Files that are not kept: the rank that has written each, its path, and why."""
        files = [(0, self._paths.weights.name, "weights", self._limits.weight_bytes)]
        traces = ((rank, self._paths.trace(rank).name) for rank in range(self._limits.ranks))
        files += ((rank, name, "trace", self._limits.trace_bytes) for rank, name in traces)
        there = {entry.name for entry in os.scandir(self._paths.live)}
        for rank, name, what, most in files:
            written = self._paths.live / name
            if name in there and _is_regular(written) and written.stat().st_size > most:
                reason = f"more than {most} bytes" if most else "the spec asks for none"
                yield rank, written, f"{what}: {reason}"

    def suspended(self) -> Suspended:
        return {}

    def collect(self) -> list[Event]:
        self._read()
        for rank, path, reason in [*self._excess()]:
            damaged = Event(time.time(), "", rank, "", "damaged", {"line": "", "reason": reason})
            self._reader.events.append(damaged)
            path.unlink()
        events = write_events(self._paths.events, self._reader.events)
        traces = [self._paths.trace(rank) for rank in range(self._limits.ranks)]
        for path in (self._paths.weights, self._paths.usage, *traces):
            if _is_regular(self._paths.live / path.name):
                (self._paths.live / path.name).replace(path)
        shutil.rmtree(self._paths.live, ignore_errors=True)
        return events


def _is_regular(path: Path) -> bool:
    """Whether a rank has written a file, and neither a pipe nor a link."""
    return path.is_file() and not path.is_symlink()
