"""Stop a run at a checkpoint on request: all ranks stop after the same step, without exchanging a message.

Ranks agree through files in a directory that all share, so a run that is not stopped sends the same bytes
as one that cannot be stopped.

DIRECTORY/request   asks for the stop; its content says why
DIRECTORY/rank-3    the point that rank 3 does not pass before all ranks have agreed
DIRECTORY/saved     every rank has written its checkpoint, and exits
DIRECTORY/finished  training has ended
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from trainer.training.checkpoint_store import CheckpointError

REQUEST = "request"
SAVED = "saved"
FINISHED = "finished"
POLL_S = 0.5
MARGIN = 4  # polls: enough for the others' files to become visible before any rank has to wait for them
REASON_BYTES = 200


class Stopped(Exception):
    """The run has stopped at a checkpoint, as requested. The message says why."""


def request_stop(directory: Path, reason: str) -> bool:
    """Ask the ranks to stop. Returns False if they do not watch the directory, because none trains yet."""
    try:
        with suppress(FileExistsError), open(directory / REQUEST, "x", encoding="utf-8") as file:
            file.write(reason)
    except OSError:
        return False
    return True


class StopAgreement:
    """One rank's part in choosing the point at which all ranks stop.

    Points are steps or epochs that this rank has completed, counted from the start of the run. A thread
    watches for the request. It publishes a point that lies ahead of this rank; the latest point of all
    ranks is the one at which they stop.
    """

    def __init__(self, directory: Path, rank: int, ranks: int, poll_s: float = POLL_S) -> None:
        self._directory, self._rank, self._ranks, self._poll_s = directory, rank, ranks, poll_s
        self._lock = threading.Lock()
        self._passed = 0
        self._bound: int | None = None
        self._last = 0
        self._agreed = threading.Event()
        self._closed = threading.Event()

    def watch(self, passed: int) -> None:
        """Watch for the request from now on. passed: points that this rank has completed."""
        self._passed = passed
        self._directory.mkdir(exist_ok=True)
        threading.Thread(target=self._run, name="stop", daemon=True).start()

    def close(self) -> None:
        """Watch no longer: training has ended."""
        self._closed.set()
        if self._rank == 0:
            _write(self._directory / FINISHED, "")

    def bounds(self, passed: int) -> bool:
        """Whether this rank must not go beyond this point before the ranks agree. Call it at each point."""
        with self._lock:
            self._passed = passed
            return self._bound is not None and passed >= self._bound

    @property
    def agreed(self) -> bool:
        """Whether the point of all ranks is known."""
        return self._agreed.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait for the agreement. Raises CheckpointError if it takes longer."""
        if not self._agreed.wait(timeout_s):
            raise CheckpointError(f"the ranks have not agreed on where to stop within {timeout_s:g} s")

    def stops(self, passed: int) -> bool:
        """Whether the ranks, which have agreed, stop at this point."""
        return passed >= self._last

    def saved(self) -> str:
        """Record that every rank has its checkpoint. Returns why the run stops."""
        if self._rank == 0:
            _write(self._directory / SAVED, "")
        return self._read(REQUEST)

    def _run(self) -> None:
        pace = 0
        while not (self._directory / REQUEST).exists():
            before = self._passed
            if self._closed.wait(self._poll_s):
                return
            pace = self._passed - before
        with self._lock:
            self._bound = self._passed + 1 + MARGIN * pace
        _write(self._directory / f"rank-{self._rank}", str(self._bound))
        while not all(points := [self._read(f"rank-{rank}") for rank in range(self._ranks)]):
            if self._closed.wait(self._poll_s):
                return
        self._last = max(map(int, points))
        self._agreed.set()

    def _read(self, name: str) -> str:
        try:
            with open(self._directory / name, encoding="utf-8", errors="replace") as file:
                return file.read(REASON_BYTES)
        except FileNotFoundError:
            return ""


def _write(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
