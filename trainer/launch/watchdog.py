"""The watchdog: a thread that acts while the rank's own thread is inside a C call.

No Python signal handler runs during a collective or a backward pass. On SIGTERM the watchdog writes where
the rank is, or requests a stop at a checkpoint. It ends the process when the orchestrator is gone, and when
teardown hangs: gloo with DDP is known to deadlock there.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from trainer.core.events import EventWriter
from trainer.launch.position import position_of, stacks
from trainer.training.stopping import request_stop

POLL_S = 0.5
GONE = "the orchestrator is gone"


class Watchdog:
    """Watches this process from `__enter__` on. Leaving the block only disarms the teardown timeout."""

    def __init__(
        self,
        writers: Sequence[EventWriter],
        orchestrator: int | None,
        stop_dir: Path | None = None,
        loss: str = GONE,
    ) -> None:
        """
        Args:
            writers: one per rank of this process.
            orchestrator: PID; this process ends 0.5 s after it.
            stop_dir: directory where SIGTERM requests a stop at a checkpoint, once the run trains.
            loss: what the exit report says then.
        """
        self._writers = writers
        self._orchestrator, self._stop_dir, self._loss = orchestrator, stop_dir, loss
        self._process = None if orchestrator is None else _process(orchestrator)
        self._exit_by: dict[int, float] = {}
        self._threads: dict[int, int] = {}  # by rank
        self._signals, self._wakeup = os.pipe()

    def __enter__(self) -> Watchdog:
        os.set_blocking(self._wakeup, False)
        # Python's C-level handler writes to this pipe at once, whatever the main thread is doing.
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the orchestrator handles Ctrl-C
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_by.clear()

    def follow(self, rank: int) -> None:
        """Note that the calling thread runs the rank. Until then the main thread prepares it."""
        self._threads[rank] = threading.get_ident()

    def exit_within(self, rank: int, seconds: float) -> None:
        """Start the teardown timeout of a rank. When all ranks have one, the process must exit in time."""
        self._exit_by[rank] = time.monotonic() + seconds

    def has_closed(self, rank: int) -> None:
        """End the teardown timeout of a rank whose process still waits for others."""
        self._exit_by.pop(rank, None)

    def _run(self) -> None:
        poll = select.poll()  # select() knows no descriptor above 1,023, and virtual ranks have files each
        poll.register(self._signals, select.POLLIN)
        while True:
            ready = poll.poll(POLL_S * 1000)
            if ready and signal.SIGTERM in os.read(self._signals, 64) and not self._requests_stop():
                self._report_stop()
                os._exit(128 + signal.SIGTERM)
            if self._orchestrator is not None and not _alive(self._process):
                self._write_all("terminated", cause=self._loss)
                os._exit(1)
            exit_by = list(self._exit_by.values())
            if exit_by and len(exit_by) == len(self._writers) and time.monotonic() > max(exit_by):
                self._write_all("done", forced=True)
                os._exit(0)

    def _requests_stop(self) -> bool:
        """Whether the run now stops at a checkpoint. If it takes too long, SIGKILL follows."""
        return self._stop_dir is not None and request_stop(self._stop_dir, "SIGTERM")

    def _report_stop(self) -> None:
        """Write where each rank is to its events, then all stacks to the log."""
        frames, ranks_of = sys._current_frames(), Counter(self._threads.values())
        for writer in self._writers:
            thread = self._threads.get(writer.rank, threading.main_thread().ident)
            # A thread that many ranks share shows where one of them is.
            found = position_of(frames.get(thread or 0)) if ranks_of[thread or 0] < 2 else None
            fields = {"position": found.model_dump(exclude_defaults=True)} if found else {}
            writer.write("terminated", cause="stopped by SIGTERM", **fields)
        for writer in self._writers[:1]:
            writer.write_text(stacks())

    def _write_all(self, kind: str, **fields: str | bool) -> None:
        for writer in self._writers:
            writer.write(kind, **fields)


def end_with(orchestrator: int) -> None:
    """End this process, which runs no ranks, within 0.5 s of the orchestrator."""
    process = _process(orchestrator)

    def run() -> None:
        while _alive(process):
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=run, name="watchdog", daemon=True).start()


def _process(number: int) -> psutil.Process | None:
    """The process, not its PID, which can be reused."""
    try:
        return psutil.Process(number)
    except psutil.NoSuchProcess:
        return None


def _alive(process: psutil.Process | None) -> bool:
    """Whether the process still runs; a zombie does not."""
    try:
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
