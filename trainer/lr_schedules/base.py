"""The interface of a learning-rate schedule."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field

from trainer.core.registry import Component


class LrSchedule(Component):
    """The factors of the learning rate over a training. trainer/training/lr_schedule.py applies them.

    A warm-up of k steps comes first: its step t has (t + 1) / (k + 1) of the first factor after it.
    """

    warm_up_steps: int = Field(
        0, ge=0, le=10**9, description="steps k of linear warm-up, whose factors are 1/(k + 1) to k/(k + 1)"
    )
    warm_up_epochs: int = Field(0, ge=0, le=10_000, description="epochs of linear warm-up, step by step")

    @property
    def without_effect(self) -> dict[str, str]:
        return {"warm_up_epochs": f"warm_up_steps: {self.warm_up_steps}"} if self.warm_up_steps else {}

    @property
    def warm_up(self) -> tuple[int, int]:
        """Steps and epochs of its warm-up; one of them is 0."""
        return self.warm_up_steps, self.warm_up_epochs

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """The factor of a step, 0 … steps − 1: a number ≥ 0 that depends on nothing else."""

    def after_warm_up(self, step: int, steps: int, epochs: int) -> float:
        """The factor in a step of a training of so many steps and epochs, the warm-up included."""
        of_steps, of_epochs = self.warm_up
        warm_up = of_steps or steps * of_epochs // epochs
        if step < warm_up:
            return self.factor(0, steps - warm_up) * (step + 1) / (warm_up + 1)
        return self.factor(step - warm_up, steps - warm_up)
