"""LAMB: Adam with a learning rate for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer
from trainer.optimizers.lars import quotient
from trainer.optimizers.textbook import TextbookOptimizer
from trainer.optimizers.textbook_adam import EPSILON

if TYPE_CHECKING:
    from torch import Tensor


class Lamb(DecayingOptimizer, TextbookOptimizer):
    """LAMB: Adam with a rate for each layer, for large batches (You et al. 2020, Alg. 2).

        m ← β1 m + (1 − β1) g,  v ← β2 v + (1 − β2) g²
        r = m / (1 − β1ᵗ) / (√(v / (1 − β2ᵗ)) + ε) + λ θ
        θ ← θ − η (‖θ‖ / ‖r‖) r

    A layer is a tensor. Where one of the norms is 0, their quotient counts as 1.
    """

    layerwise: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    beta1: float = Field(0.9, ge=0, lt=1, description="β1: decay rate of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="β2: decay rate of the mean squared gradient")
    weight_decay: float = Field(0.01, ge=0, le=1, description="λ: share of the weights added to the step")

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
        m *= self.beta1
        m += (1 - self.beta1) * g  # m ← β1 m + (1 − β1) g
        v *= self.beta2
        v += (1 - self.beta2) * g * g  # v ← β2 v + (1 − β2) g²
        r = m / (1 - self.beta1**t) / ((v / (1 - self.beta2**t)).sqrt() + EPSILON)
        r += state["weight_decay"] * theta
        theta -= lr * quotient(theta.norm(), r.norm()) * r  # θ ← θ − η (‖θ‖ / ‖r‖) r
