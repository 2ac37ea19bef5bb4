"""Momentum by hand: the textbook's step beside torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.base import TextbookRule

if TYPE_CHECKING:
    from torch import Tensor


class TextbookMomentum(TextbookRule):
    """`momentum` written out beside its formula (Polyak 1964).

    As in torch's SGD, the learning rate stays outside of the velocity.

    The step is along a sum of all gradients so far, older ones counting less: μ is how much of it stays.
    """

    library_equivalent: ClassVar[str | None] = "momentum"

    momentum: float = Field(0.9, gt=0, lt=1, description="μ: the share of the velocity that stays")

    def initial_state(self, theta: Tensor) -> dict[str, Any]:
        from torch import zeros_like

        return {"momentum_buffer": zeros_like(theta)}

    def update(self, theta: Tensor, g: Tensor, lr: float, memory: dict[str, Any]) -> None:
        u = memory["momentum_buffer"]
        u *= self.momentum
        u += g  # u ← μ u + g
        theta -= lr * u  # θ ← θ − η u
