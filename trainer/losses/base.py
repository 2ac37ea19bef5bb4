"""The interface of a loss."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.core.record import Text
from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["mean", "sum"]


class Loss(Component):
    """What training minimises, and how right an answer is."""

    takes_classes: ClassVar[bool] = True  # as targets; False: numbers of the outputs' shape

    @abstractmethod
    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The loss of a batch, a scalar that gradients flow from.

        Args:
            output: the output of the model, shape (batch, …).
            target: what it should be; a class per sample is int64 of shape (batch,).
            reduction: how the losses of the samples are reduced; a sample with several targets counts with
                their mean. Ranks that share a batch add up sums.
        """

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        """How right the answer for each sample is, 0 … 1, shape (batch,). Its mean is the accuracy.

        The most probable class counts, of scores of shape (batch, classes, …). Where a sample has several
        targets, such as tokens, it is the share of them that are right.
        """
        return per_sample((output.argmax(dim=1) == target).float())

    @property
    def weighted(self) -> bool:
        """Whether samples have `weights`."""
        return False

    def weights(self, target: Tensor) -> Tensor | None:
        """The weight of each sample in the mean, shape (batch,), from 0; None: all count alike.

        The loss of a batch is Σ wᵢ lᵢ / Σ wᵢ, also of one that ranks share. Its sum is Σ wᵢ lᵢ.
        """
        return None

    def total(self, target: Tensor) -> float:
        """What a batch counts in a mean over several: its samples, or the sum of their weights."""
        weights = self.weights(target)
        return len(target) if weights is None else weights.double().sum().item()

    @property
    def accuracy_is(self) -> Text | None:
        """What the accuracy is where it is not the share of samples of the right class; or None."""
        return None

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        """Return why this output of a model does not fit the loss and the targets, or None."""
        return None


def per_sample(values: Tensor) -> Tensor:
    """Means over all dimensions but the first: shape (batch, …) to (batch,)."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def over_samples(losses: Tensor, reduction: Reduction) -> Tensor:
    """The mean or the sum over samples, of the mean of each: shape (batch, …) to a scalar."""
    each = per_sample(losses)
    return each.mean() if reduction == "mean" else each.sum()


def shape_error(output: Tensor, target: Tensor) -> str | None:
    """Return an error message if outputs and targets differ in shape."""
    if output.shape == target.shape:
        return None
    return f"the model returns shape {tuple(output.shape)}, and the targets have {tuple(target.shape)}"


CHOICE = (
    "for classes, return integers, as targets.astype(int) does; for regression, choose a loss of numbers, "
    "such as mse"
)


def class_error(output: Tensor, target: Tensor) -> str | None:
    """Return an error message unless outputs are scores (batch, classes, …) of the targets (batch, …)."""
    if target.is_floating_point():
        return f"it needs classes as targets, and these are floating-point numbers; {CHOICE}"
    if output.dim() < 2 or (output.shape[0], *output.shape[2:]) != tuple(target.shape):
        return (
            f"the model returns shape {tuple(output.shape)}, which are no scores (batch, classes, …) for "
            f"targets of shape {tuple(target.shape)}"
        )
    if target.min() < 0 or target.max() >= output.shape[1]:
        return (
            f"the model returns scores of {output.shape[1]} classes, and the targets are "
            f"{target.min()} to {target.max()}; allowed: 0 to {output.shape[1] - 1}"
        )
    return None
