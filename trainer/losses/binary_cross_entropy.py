"""Binary cross-entropy of several labels per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.losses.base import Loss, Reduction, over_samples, per_sample, shape_error

if TYPE_CHECKING:
    from torch import Tensor


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy, for samples with several labels: targets are 0 or 1, outputs are scores.

    A score above 0 says that the sample has the label. The accuracy is the share of labels that are right.
    """

    takes_classes: ClassVar[bool] = False

    @property
    def accuracy_is(self) -> str:
        return "the share of labels that are right"

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        entropies = binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")
        return over_samples(entropies, reduction)

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        return per_sample(((output > 0) == (target > 0.5)).float())

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        if error := shape_error(output, target):
            return error
        if bool(((target == 0) | (target == 1)).all()):
            return None
        return f"targets must be 0 or 1; these are {target.min():g} to {target.max():g}"
