"""LARS: momentum with a learning rate for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor


class Lars(DecayingOptimizer, TextbookOptimizer):
    """LARS: momentum with a rate for each layer, for large batches (You et al. 2017, Alg. 1).

        λ = κ ‖θ‖ / (‖g‖ + β ‖θ‖)
        u ← μ u + η λ (g + β θ)
        θ ← θ − u

    A layer is a tensor. λ is 1 where ‖θ‖ is 0, as of biases at the start: else they would never move.
    """

    layerwise: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    trust: float = Field(0.001, gt=0, le=1, description="κ: length of a step as a share of ‖θ‖, at η = 1")
    momentum: float = Field(0.9, ge=0, lt=1, description="μ: decay rate of the velocity")
    weight_decay: float = Field(0.0005, ge=0, le=1, description="β: share of the weights added to g")

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        u, beta = state["momentum_buffer"], state["weight_decay"]
        local = quotient(self.trust * theta.norm(), g.norm() + beta * theta.norm())
        u *= self.momentum
        u += lr * local * (g + beta * theta)  # u ← μ u + η λ (g + β θ)
        theta -= u  # θ ← θ − u


def quotient(length: Tensor, by: Tensor) -> Tensor:
    """A quotient of two lengths; 1 where one of them is 0."""
    return (length / by).where((length > 0) & (by > 0), 1.0)
