"""A learning rate that falls with the inverse square root of the steps."""

from __future__ import annotations

from math import sqrt

from pydantic import Field

from trainer.lr_schedules.base import LrSchedule


class InverseSqrt(LrSchedule):
    """1 / √(1 + t / k) in step t; with k steps of warm-up that of Vaswani et al. 2017, Eq. 3."""

    timescale: int = Field(100, ge=1, le=10**9, description="k: steps after which the factor is 1/√2")

    def factor(self, step: int, steps: int) -> float:
        return 1 / sqrt(1 + step / self.timescale)
