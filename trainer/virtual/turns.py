"""Ranks that take turns: one runs at a time, until it pauses in an exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.comm.errors import CommunicationError
from trainer.core.trace import WORK_PHASES, Kind
from trainer.time_model.program import Entry
from trainer.virtual.autograd_state import AutogradState
from trainer.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from greenlet import greenlet


class VirtualRank:
    """One rank: a coroutine, its clock, and what it has done since its last turn.

    A change between two coroutines takes 1 µs, one between two threads 25 µs.

    Attributes:
        clock: the rank's clock, in cluster time.
        ended: whether the rank's body has returned.
        lost: why the rank cannot go on; None while it can.
        begins_turn: called whenever the rank continues after a pause.
    """

    _greenlet: greenlet

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ended = False
        self.lost: str | None = None
        self.begins_turn: Callable[[], object] | None = None
        self._program: list[Entry] = []

    def start(self, body: Callable[[], object]) -> None:
        """Prepare the rank, which runs `body` from the first `resume` on."""
        from greenlet import greenlet

        self._greenlet = greenlet(lambda: self._run(body))

    def _run(self, body: Callable[[], object]) -> None:
        body()
        self.ended = True
        self._post_work()

    def resume(self, now_s: float) -> list[Entry]:
        """Let the rank run from a time on. Returns what it has done: work, then the exchange it is in."""
        self.clock.now_s = max(self.clock.now_s, now_s)  # the sums differ in their rounding
        self._enter()
        program, self._program = self._program, []
        return program

    def pause(self, exchange: Entry) -> None:
        """Wait until the simulation has ended the exchange.

        Raises CommunicationError if another rank has failed.
        """
        self.note(exchange)
        self._leave()
        if self.begins_turn:
            self.begins_turn()
        if self.lost is not None:
            raise CommunicationError(self.lost)

    def note(self, exchange: Entry) -> None:
        """Append an exchange to what the rank has done, and the work before it, without waiting."""
        self._post_work()
        self._program.append(exchange)

    def _enter(self) -> None:
        """Let the rank run until it pauses or ends."""
        self._greenlet.switch()

    def _leave(self) -> None:
        """Pause the rank, until it is entered again."""
        simulation = self._greenlet.parent
        assert simulation is not None  # noqa: S101  (for the type checker)
        simulation.switch()

    def _post_work(self) -> None:
        phase, cpu_s = self.clock.take_work()
        if cpu_s > 0:
            self._program.append((int(Kind.WORK), 0, WORK_PHASES.index(phase), 0, cpu_s, 0.0, 0.0))


class TrainingRank(VirtualRank):
    """A coroutine that computes gradients. It pauses outside of backward passes."""

    def _leave(self) -> None:
        state = AutogradState.take()
        left_s = time.thread_time()
        super()._leave()
        self.clock.leave_out(time.thread_time() - left_s)
        state.restore()


class ThreadRank(VirtualRank):
    """A rank in a thread of its own: it may pause within a backward pass, whose state torch keeps there."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._resumed, self._paused = threading.Lock(), threading.Lock()
        self._resumed.acquire()
        self._paused.acquire()

    def start(self, body: Callable[[], object]) -> None:
        def run() -> None:
            self._resumed.acquire()
            try:
                self._run(body)
            finally:
                self.ended = True
                self._paused.release()

        threading.Thread(target=run, daemon=True).start()

    def _enter(self) -> None:
        self._resumed.release()
        self._paused.acquire()

    def _leave(self) -> None:
        self._paused.release()
        self._resumed.acquire()
