"""Negative log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.losses.base import Loss, Reduction, class_error, over_samples

if TYPE_CHECKING:
    from torch import Tensor

MOST_OFF = 1e-3  # of the sum of the probabilities


class Nll(Loss):
    """Negative log-likelihood of the right class, for models that return log-probabilities."""

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        from torch.nn.functional import nll_loss

        if target.dim() > 1:
            return over_samples(nll_loss(output, target, reduction="none"), reduction)
        return nll_loss(output, target, reduction=reduction)

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        if error := class_error(output, target):
            return error
        total = output.exp().sum(dim=1)
        if bool(((total - 1).abs() < MOST_OFF).all()):
            return None
        return (
            "the model returns no log-probabilities: their exponentials add up to "
            f"{total.flatten()[0]:.3g} instead of 1; end it with "
            "nn.LogSoftmax(dim=1), or use the loss cross_entropy with label_smoothing 0"
        )
