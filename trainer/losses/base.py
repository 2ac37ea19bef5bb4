"""The interface of a loss."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["mean", "sum"]


class Loss(Component):
    """What training minimises, and how right an answer is."""

    @abstractmethod
    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The loss of a batch, a scalar that gradients flow from.

        Args:
            output: of the model, shape (batch, …).
            target: what it should be; a class per sample is int64 of shape (batch,).
            reduction: over the samples. Ranks that share a batch add up sums.
        """

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        """How right the answer for each sample is, 0 … 1, shape (batch,). Its mean is the accuracy."""
        return output.argmax(dim=1) == target
