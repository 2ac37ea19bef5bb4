"""The base of optimizers whose update rule is written out beside its formula."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainer.optimizers.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class TextbookOptimizer(Optimizer):
    """An optimizer whose update rule is written in this project instead of taken from a library."""

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from trainer.optimizers.torch_wrapper import UpdateRuleOptimizer

        return UpdateRuleOptimizer(self.groups(parameters), lr, self.initial_state, self.update)

    def groups(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """The groups of torch's optimizer."""
        return [{"params": [*parameters]}]

    def initial_state(self, theta: Tensor) -> dict[str, Any]:
        """The state of a weight tensor before its first step: zeros."""
        from torch import zeros_like

        return {name: zeros_like(theta) for name in self.state_names}

    @abstractmethod
    def update(self, theta: Tensor, g: Tensor, lr: float, state: dict[str, Any]) -> None:
        """Update a weight tensor in place by one step.

        Args:
            theta: The weights θ.
            g: Their gradient, of the same shape.
            lr: The learning rate η.
            state: The state after earlier steps, to be updated in place, and `step`, the number t of this
                step, counted from 1, and `weight_decay` of its group.
        """
