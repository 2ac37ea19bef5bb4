"""Textbook Adam: the paper's algorithm written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.base import Equal
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8


class TextbookAdam(TextbookOptimizer):
    """`adam` written out beside its formula (Kingma & Ba 2015).

        m ← β1 m + (1 − β1) g
        v ← β2 v + (1 − β2) g²
        m̂ = m / (1 − β1ᵗ),  v̂ = v / (1 − β2ᵗ)
        θ ← θ − η m̂ / (√v̂ + ε)

    m and v are running means of the gradient and of its square, per weight. They start at 0; m̂ and v̂
    correct that bias.

    Source: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", Alg. 1.
    """

    equals: ClassVar[Equal | None] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    beta1: float = Field(0.9, ge=0, lt=1, description="β1: decay rate of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="β2: decay rate of the mean squared gradient")

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
        m *= self.beta1
        m += (1 - self.beta1) * g  # m ← β1 m + (1 − β1) g
        v *= self.beta2
        v += (1 - self.beta2) * g * g  # v ← β2 v + (1 − β2) g²
        m_hat = m / (1 - self.beta1**t)
        v_hat = v / (1 - self.beta2**t)
        theta -= lr * m_hat / (v_hat.sqrt() + EPSILON)  # θ ← θ − η m̂ / (√v̂ + ε)
