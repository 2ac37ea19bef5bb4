"""The clock of a virtual node: work takes the time that its core needs, exchanges what the links need."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trainer.core.clock import WORK, Clock, Phase


class VirtualClock(Clock):
    """A clock in cluster time. It stands still in an evaluation, and while a checkpoint is written.

    Work advances it by its CPU time over the speed of the node. The CPU time of an exchange does not count:
    the simulation knows when it ends.

    Attributes:
        now_s: the time, in seconds since the start of training, or since it was resumed.
        resumed: whether the rank continues from a checkpoint.
    """

    def __init__(self, speed: float, seconds_per_sample: float | None = None) -> None:
        """
        Args:
            speed: of the node's core; 1.0: a core of this machine.
            seconds_per_sample: what a sample of a step costs on a core of speed 1; None: the CPU time that
                it took, with all other work of the rank.
        """
        super().__init__(wall=lambda: self.now_s, cpu=lambda: self._cpu_since)
        self.now_s = 0.0
        self._speed, self._seconds_per_sample = speed, seconds_per_sample
        self._charged_s = self._spent_since = 0.0
        self.resumed = False
        self._unplayed = dict.fromkeys(WORK, 0.0)

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        super().restore(state)
        self.resumed = True

    @property
    def charged_s(self) -> float | None:
        """The CPU seconds that were charged; None on a clock that measures."""
        return None if self._seconds_per_sample is None else self._charged_s

    def charge(self, samples: int) -> None:
        if self._seconds_per_sample is not None:
            self._charged_s += samples * self._seconds_per_sample

    def take_work(self) -> tuple[Phase, float]:
        """The CPU seconds of work since the last call, and the phase that has most of them."""
        work = self._unplayed
        phase = max(WORK, key=work.__getitem__)
        seconds = sum(work.values())
        self._unplayed = dict.fromkeys(WORK, 0.0)
        return phase, seconds

    def book_cpu_contention(self) -> None:
        """Each virtual node has a core to itself."""

    def _switch(self, to: Phase | None) -> float:
        spent = time.thread_time() if self._seconds_per_sample is None else self._charged_s
        if (phase := self._phase) is not None:
            if phase in WORK:
                cpu_s = spent - self._spent_since
                self._cpu_since += cpu_s
                self.now_s += cpu_s / self._speed
                self.cpu_seconds[phase] += cpu_s
                self._unplayed[phase] += cpu_s
            self.seconds[phase] += self.now_s - self._since
            if (tracer := self.tracer) is not None and tracer.full:
                tracer.work_until(self.now_s)
        self._phase, self._since, self._spent_since = to, self.now_s, spent
        return self.now_s
