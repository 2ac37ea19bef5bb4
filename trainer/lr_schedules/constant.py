"""A constant learning rate."""

from __future__ import annotations

from trainer.lr_schedules.base import LrSchedule


class Constant(LrSchedule):
    """The run's rate in every step, after a warm-up if there is one."""

    def factor(self, step: int, steps: int) -> float:
        return 1.0
