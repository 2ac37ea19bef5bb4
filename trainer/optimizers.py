"""The known optimisers: torch's, with the parameters that a comparison needs to state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from trainer.registry import Component, ComponentRegistry

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class Optimizer(Component):
    """How a gradient becomes a step. The learning rate is the run's `lr`."""

    @abstractmethod
    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        """torch's optimiser over `parameters`."""


class Sgd(Optimizer):
    """Plain stochastic gradient descent."""

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import SGD

        return SGD(parameters, lr=lr)


class Momentum(Optimizer):
    """SGD with heavy-ball or Nesterov momentum (Sutskever et al. 2013)."""

    momentum: float = Field(0.9, gt=0, lt=1)
    nesterov: bool = False

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import SGD

        return SGD(parameters, lr=lr, momentum=self.momentum, nesterov=self.nesterov)


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015)."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import Adam as TorchAdam

        return TorchAdam(parameters, lr=lr, betas=(self.beta1, self.beta2))


class AdamW(Optimizer):
    """Adam with weight decay apart from the gradient (Loshchilov & Hutter 2019)."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0, le=1)

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import AdamW as TorchAdamW

        return TorchAdamW(parameters, lr=lr, betas=(self.beta1, self.beta2), weight_decay=self.weight_decay)


OPTIMIZERS: ComponentRegistry[Optimizer] = ComponentRegistry(
    "optimizer",
    {
        "sgd": "trainer.optimizers:Sgd",
        "momentum": "trainer.optimizers:Momentum",
        "adam": "trainer.optimizers:Adam",
        "adamw": "trainer.optimizers:AdamW",
    },
)
