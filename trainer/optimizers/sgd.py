"""Plain SGD, by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainer.optimizers.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class Sgd(Optimizer):
    """Plain stochastic gradient descent by torch."""

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import SGD

        return SGD(parameters, lr=lr)
