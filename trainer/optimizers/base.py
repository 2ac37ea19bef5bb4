"""What an optimiser is: how a gradient becomes a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


class Optimizer(Component):
    """How a gradient becomes a step. For learning rates see trainer/training/lr_schedule.py."""

    layerwise: ClassVar[bool] = False  # a weight's step depends on its whole tensor's gradient

    @abstractmethod
    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        """torch's optimiser over `parameters`."""


class TextbookRule(Optimizer):
    """An optimiser whose step is written here and not in a library, to be read beside its formula.

    library_equivalent: the registered optimiser of a library that takes the same steps, if there is one.
    """

    library_equivalent: ClassVar[str | None] = None

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        from trainer.optimizers.textbook import TextbookOptimizer

        return TextbookOptimizer(parameters, lr, self)

    def initial_state(self, theta: Tensor) -> dict[str, Any]:
        """What is kept of each tensor of weights from step to step, as it is before the first."""
        return {}

    @abstractmethod
    def update(self, theta: Tensor, g: Tensor, lr: float, memory: dict[str, Any]) -> None:
        """Move the weights theta by one step along their gradient g, of the same shape, in place.

        memory: `initial_state` as updated by earlier steps, and `step`, the number of this step from 1.
        """
