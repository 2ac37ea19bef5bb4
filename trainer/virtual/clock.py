"""The clock of a virtual node: work takes the time that its core needs, exchanges what the links need."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Self

from trainer.core.clock import WORK, Clock, Phase
from trainer.virtual.options import VirtualOptions


@dataclass(frozen=True)
class StepCosts:
    """CPU seconds of a training step on a core of speed 1.

    Attributes:
        gradient_s: those of the forward and backward pass of a batch, by its number of samples.
        update_s: those of a step of the optimizer.
        shares: the share of `gradient_s` that has been paid by a moment in the passes, in their order.
    """

    gradient_s: Callable[[int], float]
    update_s: float = 0.0
    shares: Mapping[Hashable, float] = field(default_factory=dict)

    @classmethod
    def given(cls, options: VirtualOptions) -> Self | None:
        """The costs that options give; None: they are measured."""
        per_step_s, per_sample_s = options.seconds_per_step, options.seconds_per_sample
        if per_sample_s is None:
            return None
        return cls(lambda samples: per_step_s + samples * per_sample_s, options.seconds_per_update)


class VirtualClock(Clock):
    """A clock in cluster time. It stands still in an evaluation, and while a checkpoint is written.

    Work advances it by its CPU time over the speed of the node. The CPU time of an exchange does not count:
    the simulation knows when it ends.

    Attributes:
        now_s: the time, in seconds since the start of training, or since it was resumed.
        resumed: whether the rank continues from a checkpoint.
    """

    def __init__(self, speed: float, costs: StepCosts | None = None) -> None:
        """
        Args:
            speed: of the node's core; 1.0: a core of this machine.
            costs: what a step costs, where no other work costs anything; None: the CPU time that it took,
                with all other work of the rank.
        """
        super().__init__(wall=lambda: self.now_s, cpu=lambda: self._cpu_since)
        self.now_s = 0.0
        self._speed, self._costs = speed, costs
        self._charged_s = self._spent_since_s = 0.0
        self._paid = 0.0  # the share of the cost of the present gradient
        self.resumed = False
        self._unplayed = dict.fromkeys(WORK, 0.0)

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        super().restore(state)
        self.resumed = True

    @property
    def given(self) -> bool:
        return self._costs is not None

    @property
    def charged_s(self) -> float | None:
        """The CPU seconds that were charged; None on a clock that measures."""
        return None if self._costs is None else self._charged_s

    def charge(self, samples: int, until: Hashable = None) -> None:
        if self._costs is not None:
            share = 1.0 if until is None else max(self._costs.shares[until], self._paid)
            self._spend(self._costs.gradient_s(samples) * (share - self._paid))
            self._paid = 0.0 if until is None else share

    def charge_update(self) -> None:
        if self._costs is not None:
            self._spend(self._costs.update_s)

    def _spend(self, cpu_s: float) -> None:
        """Book work of phase `compute`, whatever the present phase is."""
        if not self.counting:
            return
        took_s = cpu_s / self._speed
        self.now_s += took_s
        self._since += took_s
        self.seconds["compute"] += took_s
        self.cpu_seconds["compute"] += cpu_s
        self._unplayed["compute"] += cpu_s
        self._cpu_since += cpu_s
        self._charged_s += cpu_s
        if (tracer := self.tracer) is not None and tracer.full:
            tracer.work_until(self.now_s)

    def leave_out(self, cpu_s: float) -> None:
        """Leave out CPU time that the rank's thread has spent on others."""
        self._spent_since_s += cpu_s

    def take_work(self) -> tuple[Phase, float]:
        """The CPU seconds of work since the last call, and the phase that has most of them."""
        work = self._unplayed
        phase = max(WORK, key=work.__getitem__)
        seconds = sum(work.values())
        for each in WORK:
            work[each] = 0.0
        return phase, seconds

    def book_cpu_contention(self) -> None:
        """Each virtual node has a core to itself."""

    def _switch(self, to: Phase | None) -> float:
        spent_s = time.thread_time() if self._costs is None else 0.0
        if (phase := self._phase) is not None:
            if self._costs is None and phase in WORK:
                cpu_s = spent_s - self._spent_since_s
                self._cpu_since += cpu_s
                self.now_s += cpu_s / self._speed
                self.cpu_seconds[phase] += cpu_s
                self._unplayed[phase] += cpu_s
            self.seconds[phase] += self.now_s - self._since
            if (tracer := self.tracer) is not None and tracer.full:
                tracer.work_until(self.now_s)
        self._phase, self._since, self._spent_since_s = to, self.now_s, spent_s
        return self.now_s
