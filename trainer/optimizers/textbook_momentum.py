"""Textbook momentum: the update rule of heavy-ball momentum written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.base import Equal
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor


class TextbookMomentum(TextbookOptimizer):
    """`momentum` written out beside its formula (Polyak 1964).

        u ← μ u + g
        θ ← θ − η u

    The velocity u is a decaying sum of all gradients so far. As in torch's SGD, the learning rate η
    multiplies the velocity and not the gradient, so that a change of η takes effect at once.

    Source: Polyak 1964, "Some methods of speeding up the convergence of iteration methods".
    """

    equals: ClassVar[Equal | None] = "momentum"
    state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    momentum: float = Field(0.9, gt=0, lt=1, description="μ: decay rate of the velocity")

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        u = state["momentum_buffer"]
        u *= self.momentum
        u += g  # u ← μ u + g
        theta -= lr * u  # θ ← θ − η u
