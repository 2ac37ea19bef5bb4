"""The run in progress, from the events that its ranks are writing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from orchestrator.execution.position import STARTING, Position, position
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.slurm.options import MAX_REQUEUES
from trainer.core.events import Event, EventReader, format_event
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

LINES = 200  # of events that are kept


@dataclass(frozen=True)
class Point:
    """A run after an epoch, with means over the ranks that have finished it. loss: the last batch's."""

    epoch: int
    loss: float | None
    accuracy: float


def points_of(epochs: Iterable[tuple[int, float | None, float]]) -> list[Point]:
    """A point for each epoch, from its number, loss and accuracy for each rank."""
    found: dict[int, list[tuple[float | None, float]]] = {}
    for epoch, loss, accuracy in epochs:
        found.setdefault(epoch, []).append((loss, accuracy))
    return [
        Point(
            epoch,
            fmean(losses) if (losses := [loss for loss, _ in ranks if loss is not None]) else None,
            fmean(accuracy for _, accuracy in ranks),
        )
        for epoch, ranks in sorted(found.items())
    ]


class LiveRun:
    """Follows the events of a run; reads each byte once.

    Attributes:
        spec: the spec of the run.
        positions: the positions of its ranks.
    """

    def __init__(self, paths: RunPaths, spec: RunSpec) -> None:
        self._paths, self.spec = paths, spec
        self.positions: dict[int, Position] = dict.fromkeys(range(self.spec.world_size), STARTING)
        self._epochs: dict[tuple[int, int], tuple[float | None, float]] = {}  # by epoch and rank
        self._lines: deque[str] = deque(maxlen=LINES)
        self._line_count = 0
        self._reader: EventReader | None = None

    def poll(self) -> None:
        """Read what is new. Events move to another file when the run has ended; what was read stays."""
        if self._reader is None:
            self._reader = self._new_reader()
        with suppress(OSError):  # of a file that was moved between listing and opening it
            for event in self._reader.new() if self._reader else ():
                self._add(event)

    @property
    def points(self) -> list[Point]:
        return points_of((epoch, *values) for (epoch, _), values in self._epochs.items())

    def lines(self, after: int) -> tuple[list[str], int]:
        """What ranks have reported, as in their logs, which runtime docker saves when a run has ended.

        Args:
            after: how many lines the caller has.

        Returns:
            The lines after these, of the newest LINES, and how many there are by now.
        """
        new = self._line_count - after
        return ([*self._lines][-new:] if new else []), self._line_count

    def _new_reader(self) -> EventReader | None:
        # Ranks and coordinators write here; warm containers below the directory that all runs share.
        candidates = [self._paths.live, *self._paths.warm.glob(f"*/{self._paths.directory.name}")]
        for directory in filter(Path.is_dir, candidates):
            limits = OutputLimits.of(self.spec, MAX_REQUEUES if self.spec.checkpoints else 0)
            return EventReader(directory, limits.ranks, limits.event_bytes, limits.restarts)
        return None

    def _add(self, event: Event) -> None:
        before = self.positions.get(event.rank, STARTING)
        if found := position(event, before):
            self.positions[event.rank] = found
        if event.kind == "epoch":
            fields = event.fields
            self._epochs[fields["epoch"], event.rank] = (fields["loss"], fields["accuracy"])
        elif event.kind == "start":  # a rank that was started again repeats its epochs
            self._epochs = {at: values for at, values in self._epochs.items() if at[1] != event.rank}
            self.positions[event.rank] = STARTING
        for line in (format_event(event) or "").splitlines():
            self._lines.append(f"rank {event.rank} | {line}")
            self._line_count += 1


def slowest(positions: Mapping[int, Position]) -> Position:
    """The position of the rank that has done least; the first of equals."""
    return min(positions.values(), key=lambda at: at.done, default=STARTING)
