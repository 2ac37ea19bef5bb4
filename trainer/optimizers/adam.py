"""Adam, by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.optimizers.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class Adam(Optimizer):
    """Adam by torch (Kingma & Ba 2015)."""

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    beta1: float = Field(0.9, ge=0, lt=1, description="decay rate of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay rate of the mean squared gradient")

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import Adam as TorchAdam

        return TorchAdam(parameters, lr=lr, betas=(self.beta1, self.beta2))
