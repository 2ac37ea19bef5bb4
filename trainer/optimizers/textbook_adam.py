"""Adam by hand: the paper's algorithm beside torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.base import TextbookRule

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8


class TextbookAdam(TextbookRule):
    """`adam` written out beside its formula (Kingma & Ba 2015).

    m and v are running means of the gradient and of its square, weight by weight. They begin at 0, which
    the bias correction takes out again.

    Source: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", Alg. 1.
    """

    library_equivalent: ClassVar[str | None] = "adam"

    beta1: float = Field(0.9, ge=0, lt=1, description="β1: the share of the mean gradient that stays")
    beta2: float = Field(0.999, ge=0, lt=1, description="β2: the share of the mean square that stays")

    def initial_state(self, theta: Tensor) -> dict[str, Any]:
        from torch import zeros_like

        return {"exp_avg": zeros_like(theta), "exp_avg_sq": zeros_like(theta)}

    def update(self, theta: Tensor, g: Tensor, lr: float, memory: dict[str, Any]) -> None:
        m, v, t = memory["exp_avg"], memory["exp_avg_sq"], memory["step"]
        m *= self.beta1
        m += (1 - self.beta1) * g  # m ← β1 m + (1 − β1) g
        v *= self.beta2
        v += (1 - self.beta2) * g * g  # v ← β2 v + (1 − β2) g²
        unbiased_m = m / (1 - self.beta1**t)
        unbiased_v = v / (1 - self.beta2**t)
        theta -= lr * unbiased_m / (unbiased_v.sqrt() + EPSILON)  # θ ← θ − η m̂ / (√v̂ + ε)
