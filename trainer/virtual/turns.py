"""Ranks as threads that take turns: one runs at a time, until it pauses in an exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer.comm.base import CommunicationError
from trainer.core.trace import WORK_PHASES, Kind
from trainer.time_model.program import Entry
from trainer.virtual.clock import VirtualClock


class VirtualRank:
    """One rank: its thread, its clock, and what it has done since its last turn.

    Threads, because autograd keeps its state in the thread that runs the backward pass, and an exchange may
    be part of one.

    Attributes:
        clock: the rank's clock, in cluster time.
        ended: whether the rank's body has returned.
        lost: why the rank cannot go on; None while it can.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ended = False
        self.lost: str | None = None
        self._program: list[Entry] = []
        self._resumed, self._paused = threading.Lock(), threading.Lock()
        self._resumed.acquire()
        self._paused.acquire()

    def start(self, body: Callable[[], object]) -> None:
        """Create the thread, which runs `body` from the first `resume` on."""

        def run() -> None:
            self._resumed.acquire()
            try:
                body()
            finally:
                self.ended = True
                self._post_work()
                self._paused.release()

        threading.Thread(target=run, daemon=True).start()

    def resume(self, now_s: float) -> list[Entry]:
        """Let the rank run from a time on. Returns what it has done: work, then the exchange it is in."""
        self.clock.now_s = max(self.clock.now_s, now_s)  # the sums differ in their rounding
        self._resumed.release()
        self._paused.acquire()
        program, self._program = self._program, []
        return program

    def pause(self, exchange: Entry) -> None:
        """Wait, in the rank's thread, until the simulation has ended the exchange.

        Raises CommunicationError if another rank has failed.
        """
        self._post_work()
        self._program.append(exchange)
        self._paused.release()
        self._resumed.acquire()
        if self.lost is not None:
            raise CommunicationError(self.lost)

    def _post_work(self) -> None:
        phase, cpu_s = self.clock.take_work()
        if cpu_s > 0:
            self._program.append((int(Kind.WORK), 0, WORK_PHASES.index(phase), 0, cpu_s, 0.0, 0.0))
