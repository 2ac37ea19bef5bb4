"""NovoGrad: momentum on gradients that are normalised layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer
from trainer.optimizers.textbook import TextbookOptimizer

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8


class NovoGrad(DecayingOptimizer, TextbookOptimizer):
    """NovoGrad: gradients normalised layer by layer (Ginsburg et al. 2019).

        v ← ‖g‖² in the first step, then β2 v + (1 − β2) ‖g‖²
        m ← β1 m + g / (√v + ε) + d θ
        θ ← θ − η m

    Like Adam with weight decay, except that v is one number per layer and that m sums normalised gradients.
    v starts as the first squared norm, so it needs no bias correction. A layer is a tensor, so weights and
    biases are two layers.

    The length of a step does not depend on the scale of the gradient. Without weight decay it is η in the
    first step of each layer. While ‖g‖² stays near v, it grows to about η / √(1 − β1²) if successive
    gradients are uncorrelated, and to η / (1 − β1), 20 η by default, if they all have the same direction.
    So `lr` should be smaller than with plain SGD.

    Source: Ginsburg et al. 2019, "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training
    of Deep Networks", Alg. 1.
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg",)
    layerwise: ClassVar[bool] = True

    beta1: float = Field(0.95, ge=0, lt=1, description="β1: decay rate of m")
    beta2: float = Field(0.98, ge=0, lt=1, description="β2: decay rate of v")
    weight_decay: float = Field(0.001, ge=0, le=1, description="d: share of the weights added to m")

    def initial_state(self, theta: Tensor) -> dict[str, Any]:
        return super().initial_state(theta) | {"exp_avg_sq": theta.new_zeros(())}

    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
        squared_norm = (g * g).sum()
        beta2 = self.beta2 if t > 1 else 0.0  # v ← ‖g‖² in the first step
        v *= beta2
        v += (1 - beta2) * squared_norm  # v ← β2 v + (1 − β2) ‖g‖²
        m *= self.beta1
        m += g / (v.sqrt() + EPSILON) + state["weight_decay"] * theta  # m ← β1 m + (g / (√v + ε) + d θ)
        theta -= lr * m  # θ ← θ − η m
