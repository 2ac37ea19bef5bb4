"""Lion: steps along the sign of a momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor


class Lion(DecayingOptimizer, TextbookOptimizer):
    """Lion: the sign of a momentum, with decoupled weight decay (Chen et al. 2023).

        c = β1 m + (1 − β1) g
        θ ← θ − η (sign(c) + λ θ)
        m ← β2 m + (1 − β2) g

    It keeps one number per weight, where Adam keeps two. Every weight moves by η, so `lr` should be 3 to 10
    times smaller than with AdamW, and λ as many times larger (Sec. 5). Where c is close to 0, rounding can
    change its sign, so trainings that are equal up to rounding can differ by 2η in single weights.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Alg. 2.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)

    beta1: float = Field(0.9, ge=0, lt=1, description="β1: share of the momentum in the step")
    beta2: float = Field(0.99, ge=0, lt=1, description="β2: decay rate of the momentum")
    weight_decay: float = Field(
        0.01, ge=0, le=10, description="λ: share of the weights, times lr, removed per step"
    )

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        m = state["exp_avg"]
        c = self.beta1 * m + (1 - self.beta1) * g
        theta -= lr * (c.sign() + state["weight_decay"] * theta)  # θ ← θ − η (sign(c) + λ θ)
        m *= self.beta2
        m += (1 - self.beta2) * g  # m ← β2 m + (1 − β2) g
