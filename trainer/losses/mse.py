"""Mean squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.losses.base import Loss, Reduction, over_samples, per_sample, shape_error

if TYPE_CHECKING:
    from torch import Tensor


class Mse(Loss):
    """Mean squared error, for regression: outputs and targets are numbers of the same shape.

    The accuracy is the share of numbers that are off by at most `tolerance`.
    """

    takes_classes: ClassVar[bool] = False

    tolerance: float = Field(0.5, gt=0, description="largest error of a right answer, in the targets' unit")

    @property
    def accuracy_is(self) -> str:
        return f"the share of numbers that are off by at most {self.tolerance:g}"

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        return over_samples((output - target.to(output.dtype)).square(), reduction)

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        return per_sample(((output - target).abs() <= self.tolerance).float())

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return shape_error(output, target)
