"""A learning rate that falls in steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainer.lr_schedules.base import LrSchedule


class Step(LrSchedule):
    """γ^m after m milestones; He et al. 2016, Sec. 4.2, have γ = 0.1 at 1/2 and 3/4 of the steps."""

    gamma: float = Field(0.1, gt=0, lt=1, description="γ: factor at each milestone")
    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        [0.5, 0.75], min_length=1, max_length=64, description="shares of the training, each from 0 to 1"
    )

    def factor(self, step: int, steps: int) -> float:
        return self.gamma ** sum(step >= round(share * steps) for share in self.milestones)
