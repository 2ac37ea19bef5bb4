"""The watch: a thread that acts when the rank's own thread cannot.

A rank spends its life inside C calls (a collective, a backward pass), where no Python signal handler
runs. The watch says the last word on SIGTERM, ends the process when the orchestrator is gone, and ends
it when teardown hangs: gloo with DDP is known to deadlock there.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from types import TracebackType

import psutil

from trainer.core.events import EventWriter

POLL_S = 0.5


class Watchdog:
    """Watches this process from `__enter__` on; leaving the block only stops the teardown alarm."""

    def __init__(self, writers: Sequence[EventWriter], orchestrator: int | None) -> None:
        """writers: one per rank of this process. orchestrator: process to outlive by no more than 0.5 s."""
        self._writers = writers
        self._orchestrator = orchestrator
        self._process = None if orchestrator is None else _process(orchestrator)
        self._leave_by: dict[int, float] = {}
        self._signals, self._wakeup = os.pipe()

    def __enter__(self) -> Watchdog:
        os.set_blocking(self._wakeup, False)
        # Python's C-level handler writes to this pipe at once, whatever the main thread is doing.
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the orchestrator's to handle
        threading.Thread(target=self._run, name="watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_by.clear()

    def leave_within(self, rank: int, seconds: float) -> None:
        """This rank's result is written: when all are, the process has this long to end by itself."""
        self._leave_by[rank] = time.monotonic() + seconds

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._signals], [], [], POLL_S)
            if ready and signal.SIGTERM in os.read(self._signals, 64):
                self._say("terminated", cause="stopped by SIGTERM")
                os._exit(128 + signal.SIGTERM)
            if self._orchestrator is not None and not _alive(self._process):
                self._say("terminated", cause="the orchestrator is gone")
                os._exit(1)
            leave_by = list(self._leave_by.values())
            if leave_by and len(leave_by) == len(self._writers) and time.monotonic() > max(leave_by):
                self._say("done", forced=True)
                os._exit(0)

    def _say(self, kind: str, **fields: str | bool) -> None:
        for writer in self._writers:
            writer.write(kind, **fields)


def end_with(orchestrator: int) -> None:
    """End this process, which has no ranks in it, no more than 0.5 s after the orchestrator."""
    process = _process(orchestrator)

    def run() -> None:
        while _alive(process):
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=run, name="watch", daemon=True).start()


def _process(number: int) -> psutil.Process | None:
    """The process itself and not its number, which another may get."""
    try:
        return psutil.Process(number)
    except psutil.NoSuchProcess:
        return None


def _alive(process: psutil.Process | None) -> bool:
    """Whether it is this process still, and no zombie that nobody has buried."""
    try:
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
