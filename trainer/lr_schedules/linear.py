"""A learning rate that falls linearly."""

from __future__ import annotations

from pydantic import Field

from trainer.lr_schedules.base import LrSchedule


class Linear(LrSchedule):
    """f + (1 − f) (1 − t / T) in step t of T (Devlin et al. 2019, App. A.2)."""

    final: float = Field(0.0, ge=0, le=1, description="f: factor that it would have after the last step")

    def factor(self, step: int, steps: int) -> float:
        return self.final + (1 - self.final) * (1 - step / steps)
