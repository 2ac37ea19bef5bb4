"""AdamW, by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class AdamW(DecayingOptimizer):
    """Adam with decoupled weight decay by torch (Loshchilov & Hutter 2019)."""

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    beta1: float = Field(0.9, ge=0, lt=1, description="decay rate of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay rate of the mean squared gradient")
    weight_decay: float = Field(
        0.01, ge=0, le=1, description="share of the weights, times lr, removed per step"
    )

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import AdamW as TorchAdamW

        return TorchAdamW(self.groups(parameters), lr=lr, betas=(self.beta1, self.beta2))
