"""Where the time goes: every second between start and stop belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal, get_args

Phase = Literal[
    "data", "compute", "communicate", "wait", "cpu_contention", "evaluate", "checkpoint", "other"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
WORK: tuple[Phase, ...] = ("data", "compute", "other")  # in which a rank needs a core all the time


class Clock:
    """A stopwatch that is always in one phase, so the phases add up to the whole.

    wall: seconds on a clock that the ranks of one machine share (Linux: CLOCK_MONOTONIC).
    cpu: CPU seconds of this rank.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.wall = wall
        self._cpu = cpu
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.cpu_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._phase: Phase | None = None  # None while stopped
        self._since = self._cpu_since = 0.0

    def start(self) -> None:
        """Begin in phase `other`."""
        self._switch("other")

    def stop(self) -> None:
        """Book the time since the last change of phase, and stand still."""
        self._switch(None)

    @property
    def counting(self) -> bool:
        """Whether what happens now is part of training: started, and not evaluating."""
        return self._phase is not None and self._phase != "evaluate"

    @property
    def train_s(self) -> float:
        """Seconds of training so far: everything but evaluation."""
        self._switch(self._phase)
        return sum(self.seconds.values()) - self.seconds["evaluate"]

    @property
    def booked(self) -> dict[str, float]:
        """Seconds by phase, to the microsecond; `checkpoint` only where there were any."""
        told = {phase: round(seconds, 6) for phase, seconds in self.seconds.items()}
        return {phase: seconds for phase, seconds in told.items() if seconds or phase != "checkpoint"}

    def state(self) -> dict[str, dict[str, float]]:
        """The seconds so far, of each phase."""
        self._switch(self._phase)
        return {"seconds": dict(self.seconds), "cpu_seconds": dict(self.cpu_seconds)}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what `state` has given in another process. For a clock that has not been started."""
        self.seconds.update(state["seconds"])
        self.cpu_seconds.update(state["cpu_seconds"])

    def phase(self, name: Phase) -> Span:
        """Book the block to `name`. No effect while stopped or evaluating: evaluation is one piece."""
        return Span(self, name)

    def now(self) -> tuple[float, float]:
        """Wall and CPU seconds."""
        return self.wall(), self._cpu()

    def transfer(self, source: Phase, to: Phase, seconds: float, cpu_seconds: float = 0.0) -> None:
        """Rebook wall and CPU seconds that turned out to belong to another phase."""
        for book, amount in ((self.seconds, seconds), (self.cpu_seconds, cpu_seconds)):
            moved = min(max(amount, 0.0), book[source])
            book[source] -= moved
            book[to] += moved

    def book_cpu_contention(self) -> None:
        """Rebook the time in which the rank had work but no core, because others were on it.

        That is the wall time of the working phases that is not CPU time. It has to be done: the system
        takes the core away at a system call, so it would pile up in whatever phase comes after one.
        """
        for phase in WORK:
            self.transfer(phase, "cpu_contention", self.seconds[phase] - self.cpu_seconds[phase])

    @property
    def work_cpu_s(self) -> float:
        """CPU seconds of the working phases."""
        return sum(self.cpu_seconds[phase] for phase in WORK)

    def _switch(self, to: Phase | None) -> float:
        """Returns the wall time at which the one phase ended and the other began."""
        wall, cpu = self.wall(), self._cpu()
        if (phase := self._phase) is not None:
            self.seconds[phase] += wall - self._since
            self.cpu_seconds[phase] += cpu - self._cpu_since
        self._phase, self._since, self._cpu_since = to, wall, cpu
        return wall


class Span:
    """A block of code that the clock books to one phase.

    counted: whether it was part of training; only then it has a beginning and an end, in seconds of the
    clock. A class and not a generator, which costs three times as much: a small all-reduce takes 20 µs.
    """

    __slots__ = ("_before", "_clock", "_phase", "counted", "entered", "left")

    def __init__(self, clock: Clock, phase: Phase) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> Span:
        self.counted = self._clock.counting
        if self.counted:
            self._before = self._clock._phase
            self.entered = self._clock._switch(self._phase)
        return self

    def __exit__(self, *error: object) -> None:
        if self.counted and self._clock._phase is not None:  # stopped inside the block, the clock stays so
            self.left = self._clock._switch(self._before)
