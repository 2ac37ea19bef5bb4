"""The clock of a rank: every second between start and stop belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Literal, get_args

from trainer.core.tracer import Tracer

Phase = Literal[
    "data", "compute", "communicate", "wait", "cpu_contention", "evaluate", "checkpoint", "other"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
WORK: tuple[Phase, ...] = ("data", "compute", "other")  # phases in which a rank needs a core


class Clock:
    """A stopwatch that is always in one phase, so the phases add up to the total.

    wall: seconds on a clock shared by all ranks of a machine (Linux: CLOCK_MONOTONIC).
    cpu: CPU seconds of this rank.
    all_cpu: CPU seconds of its process, whose other threads move bytes; None: there are none.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
        all_cpu: Callable[[], float] | None = None,
    ) -> None:
        self.wall = wall
        self._cpu, self._all_cpu = cpu, all_cpu
        self._library_since = 0.0
        # CPU seconds of the other threads in phases of work.
        self._library_s: dict[str, float] = dict.fromkeys(WORK, 0.0)
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.cpu_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.tracer: Tracer | None = None  # of a rank that is traced
        self._phase: Phase | None = None  # None while stopped
        self._since = self._cpu_since = 0.0

    def start(self) -> None:
        """Start in phase `other`."""
        self._switch("other")

    def stop(self) -> None:
        """Book the time since the last change of phase, and stop."""
        self._switch(None)

    def lap(self) -> tuple[float, float]:
        """Book the time since the last change of phase. Returns wall and CPU seconds of this moment."""
        self._switch(self._phase)
        return self._since, self._cpu_since

    @property
    def booked_until(self) -> float:
        """Wall time of the last change of phase, up to which all time is booked."""
        return self._since

    @property
    def counting(self) -> bool:
        """Whether the clock counts training time: started and not evaluating."""
        return self._phase is not None and self._phase != "evaluate"

    @property
    def train_s(self) -> float:
        """Seconds of training so far: everything but evaluation."""
        self._switch(self._phase)
        return sum(self.seconds.values()) - self.seconds["evaluate"]

    @property
    def booked(self) -> dict[str, float]:
        """Seconds by phase, rounded to microseconds; `checkpoint` only if it is not 0."""
        rounded = {phase: round(seconds, 6) for phase, seconds in self.seconds.items()}
        return {phase: seconds for phase, seconds in rounded.items() if seconds or phase != "checkpoint"}

    def state(self) -> dict[str, dict[str, float]]:
        """Wall and CPU seconds of each phase so far."""
        self._switch(self._phase)
        return {
            "seconds": dict(self.seconds),
            "cpu_seconds": dict(self.cpu_seconds),
            "library_s": dict(self._library_s),
        }

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Continue from a `state` of another process. Call it before `start`."""
        self.seconds.update(state["seconds"])
        self.cpu_seconds.update(state["cpu_seconds"])
        self._library_s.update(state["library_s"])

    def phase(self, name: Phase) -> Span:
        """Book a `with` block to `name`. No effect while stopped or evaluating."""
        return Span(self, name)

    def unread(self) -> Span:
        """A span of no length at the last change of phase, for which the clock is not read."""
        span = Span(self, "communicate")
        span.counted, span.entered, span.left, span.cpu_s = self.counting, self._since, self._since, 0.0
        return span

    @property
    def given(self) -> bool:
        """Whether it is given the costs of work, and measures none."""
        return False

    def charge(self, samples: int, until: Hashable = None) -> None:
        """Take the cost of a gradient of these samples as CPU time, on a clock that is given costs.

        until: a moment in its passes; None: their end.
        """

    def charge_update(self) -> None:
        """Take the cost of a step of the optimizer as CPU time, on a clock that is given costs."""

    def now(self) -> tuple[float, float]:
        """Wall and CPU seconds."""
        return self.wall(), self._cpu()

    def transfer(self, source: Phase, to: Phase, seconds: float, cpu_seconds: float = 0.0) -> None:
        """Move wall and CPU seconds from one phase to another."""
        for book, amount in ((self.seconds, seconds), (self.cpu_seconds, cpu_seconds)):
            moved = min(max(amount, 0.0), book[source])
            book[source] -= moved
            book[to] += moved

    def book_cpu_contention(self) -> None:
        """Move the time in which the rank had work but no core to phase `cpu_contention`.

        That is the wall time of the working phases minus their CPU time. The kernel preempts a process at
        a system call, so this time would otherwise pile up in the phase that follows one. What the threads
        of the library took of the core meanwhile is communication that work did not hide.
        """
        for phase in WORK:
            lost_s = self.seconds[phase] - self.cpu_seconds[phase]
            moved_s = min(lost_s, self._library_s[phase])
            self.transfer(phase, "communicate", moved_s)
            self.transfer(phase, "cpu_contention", lost_s - moved_s)

    @property
    def work_cpu_s(self) -> float:
        """CPU seconds of the working phases."""
        return sum(self.cpu_seconds[phase] for phase in WORK)

    def _switch(self, to: Phase | None) -> float:
        """Switch the phase. Returns the wall time of the switch."""
        wall, cpu = self.wall(), self._cpu()
        library = self._all_cpu() - cpu if self._all_cpu else 0.0
        if (phase := self._phase) is not None:
            self.seconds[phase] += wall - self._since
            self.cpu_seconds[phase] += cpu - self._cpu_since
            if phase in self._library_s:
                self._library_s[phase] += library - self._library_since
            if (tracer := self.tracer) is not None and tracer.full:
                tracer.work_until(wall)
        self._phase, self._since, self._cpu_since, self._library_since = to, wall, cpu, library
        return wall


class Span:
    """A block of code that the clock books to one phase.

    entered, left: its start and end, in wall seconds. counted: whether it was part of training; only then
    `left` and `cpu_s` are set. A class, because a generator costs three times as much and a small
    all-reduce takes 20 µs.
    """

    __slots__ = ("_before", "_clock", "_cpu", "_phase", "counted", "cpu_s", "entered", "left")

    def __init__(self, clock: Clock, phase: Phase) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> Span:
        self.counted = self._clock.counting
        if self.counted:
            self._before = self._clock._phase
            self.entered = self._clock._switch(self._phase)
            self._cpu = self._clock._cpu_since
        else:
            self.entered = self._clock.wall()
        return self

    def __exit__(self, *error: object) -> None:
        if self.counted and self._clock._phase is not None:  # unless stopped inside the block
            self.left = self._clock._switch(self._before)
            self.cpu_s = self._clock._cpu_since - self._cpu
