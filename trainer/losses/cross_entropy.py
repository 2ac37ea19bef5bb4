"""Cross-entropy with smoothed labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trainer.losses.base import Loss, Reduction, class_error, over_samples

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropy(Loss):
    """Cross-entropy with label smoothing (Szegedy et al. 2016, Sec. 7).

    A share of the probability of the right class is spread evenly over all classes. For models that return
    scores or log-probabilities: these are scores that softmax leaves as they are.
    """

    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share spread over all classes; 0 is nll")

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        from torch.nn.functional import cross_entropy

        smoothing = self.label_smoothing
        if target.dim() > 1:
            losses = cross_entropy(output, target, reduction="none", label_smoothing=smoothing)
            return over_samples(losses, reduction)
        return cross_entropy(output, target, reduction=reduction, label_smoothing=smoothing)

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return class_error(output, target)
