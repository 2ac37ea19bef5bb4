"""SGD with momentum, by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class Momentum(DecayingOptimizer):
    """SGD with heavy-ball or Nesterov momentum by torch (Sutskever et al. 2013)."""

    state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    momentum: float = Field(0.9, gt=0, lt=1, description="share of the velocity that each step keeps")
    nesterov: bool = Field(False, description="Nesterov's momentum instead of heavy-ball")
    weight_decay: float = Field(0.0, ge=0, le=1, description="share of the weights added to the gradient")

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import SGD

        return SGD(self.groups(parameters), lr=lr, momentum=self.momentum, nesterov=self.nesterov)
