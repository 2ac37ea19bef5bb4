"""The run in progress, from the events and the log that its ranks are writing."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from orchestrator.execution.position import STARTING, position, share_done
from orchestrator.results.store import RunPaths, UnusableFile, read_spec
from orchestrator.results.times import duration
from orchestrator.runtimes.slurm.options import MAX_REQUEUES
from trainer.core.events import EventReader, format_event
from trainer.core.record import cut, printable
from trainer.core.regular_files import open_below, why_unread
from trainer.spec.output_limits import OutputLimits

LOG = "node-0.log"
LINES = 40  # of a log, from its end, that are shown
BYTES = 2**15  # of a log, from its end, that are read
LINE_CHARACTERS = 500  # of a longer line, the middle is left out


class LiveRun:
    """Follows a run; reads each byte of its events once."""

    def __init__(self, paths: RunPaths, started_ns: int) -> None:
        """started_ns: when it started, in ns since 1970."""
        self.key, self.started_ns = paths.directory.name, started_ns
        self._paths = paths
        self._spec = None
        with suppress(UnusableFile):  # then no more is known of the run
            self._spec = read_spec(paths)
        self._positions = dict.fromkeys(range(self._spec.world_size if self._spec else 0), STARTING)
        self._reader: EventReader | None = None

    @property
    def done(self) -> float:
        """The share of its training that is done, 0 … 1."""
        return min(1.0, share_done(self._positions.values()))

    @property
    def elapsed_s(self) -> float:
        return max(0.0, time.time() - self.started_ns / 1e9)

    @property
    def text(self) -> str:
        """Its key, where its slowest rank is, and for how long it has run."""
        at = min(self._positions.values(), key=lambda each: each.done, default=STARTING)
        epoch = at.epoch if at == STARTING else f"epoch {at.epoch}"
        accuracy = f"accuracy {at.accuracy}" if at.accuracy else ""
        return " · ".join(filter(None, [self.key, epoch, accuracy, duration(self.elapsed_s)]))

    def poll(self) -> None:
        """Read what is new. Events move to another file when the run has ended; what was read stays."""
        self._reader = self._reader or self._new_reader()
        with suppress(OSError):  # of a file that was moved between listing and opening it
            for event in self._reader.new() if self._reader else ():
                if event.kind == "start":  # a rank that was started again repeats its epochs
                    self._positions[event.rank] = STARTING
                elif found := position(event, self._positions.get(event.rank, STARTING)):
                    self._positions[event.rank] = found

    def log(self) -> tuple[str, list[str]]:
        """What it is of, and the last lines of the first node's log.

        Runtime docker saves logs when a run has ended: until then, what ranks report has the same lines.
        """
        try:
            return f"{self.key}/{LOG}", _last_lines(self._paths.directory.parent, f"{self.key}/{LOG}")
        except FileNotFoundError:
            lines = [
                printable(f"rank {event.rank} | {line}")
                for event in (self._reader.events[-LINES:] if self._reader else ())
                for line in (format_event(event) or "").splitlines()
            ]
            return f"{self.key}, as its ranks report", lines[-LINES:]
        except OSError as error:
            return f"{self.key}/{LOG}", [f"{LOG} {why_unread(error)}"]

    def _new_reader(self) -> EventReader | None:
        # Ranks and coordinators write here; warm containers below the directory that all runs share.
        for directory in (self._paths.live, *self._paths.warm.glob(f"*/{self.key}")):
            if self._spec and directory.is_dir() and not directory.is_symlink():
                limits = OutputLimits.of(self._spec, MAX_REQUEUES if self._spec.checkpoints else 0)
                return EventReader(directory, limits.ranks, limits.event_bytes, limits.restarts)
        return None


def _last_lines(directory: Path, relative: str) -> list[str]:
    """The last lines of a file below a directory, with visible escapes for control characters."""
    with open_below(directory, relative) as file:
        begin = max(0, file.seek(0, os.SEEK_END) - BYTES)
        file.seek(begin)
        data = file.read(BYTES)
    if begin:
        data = data.partition(b"\n")[2] or data  # it may start within a line
    lines = data.decode(errors="replace").removesuffix("\n").split("\n") if data else []
    return [cut(printable(line.removesuffix("\r")), LINE_CHARACTERS) for line in lines[-LINES:]]
