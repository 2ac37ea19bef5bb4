"""SGD by hand: the textbook's step beside torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trainer.optimizers.base import TextbookRule

if TYPE_CHECKING:
    from torch import Tensor


class TextbookSgd(TextbookRule):
    """`sgd` written out beside its formula, θ ← θ − η g (Robbins & Monro 1951).

    With the whole training set as the batch the same step is gradient descent.
    """

    library_equivalent: ClassVar[str | None] = "sgd"

    def update(self, theta: Tensor, g: Tensor, lr: float, memory: dict[str, Any]) -> None:
        theta -= lr * g  # θ ← θ − η g
