"""Textbook SGD: the update rule of plain SGD written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trainer.optimizers.base import Equal
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor


class TextbookSgd(TextbookOptimizer):
    """`sgd` written out beside its formula, θ ← θ − η g (Robbins & Monro 1951).

    With the whole training set as the batch this is gradient descent.

    Source: Robbins & Monro 1951, "A Stochastic Approximation Method".
    """

    equals: ClassVar[Equal | None] = "sgd"

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        theta -= lr * g  # θ ← θ − η g
