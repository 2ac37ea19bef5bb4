"""A learning rate that falls along half a cosine."""

from __future__ import annotations

from math import cos, pi

from pydantic import Field

from trainer.lr_schedules.base import LrSchedule


class Cosine(LrSchedule):
    """f + (1 − f) (1 + cos(π t / T)) / 2 in step t of T (Loshchilov & Hutter 2017, Eq. 5)."""

    final: float = Field(0.0, ge=0, le=1, description="f: factor that it would have after the last step")

    def factor(self, step: int, steps: int) -> float:
        return self.final + (1 - self.final) * (1 + cos(pi * step / steps)) / 2
