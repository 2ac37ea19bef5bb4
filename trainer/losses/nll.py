"""Negative log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.losses.base import Loss, Reduction

if TYPE_CHECKING:
    from torch import Tensor


class Nll(Loss):
    """Negative log-likelihood of the right class, for models that return log-probabilities."""

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        from torch.nn.functional import nll_loss

        return nll_loss(output, target, reduction=reduction)
