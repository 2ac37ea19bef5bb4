"""The interface of an optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer

Equal = Literal["sgd", "momentum", "adam", "adamw"]


class Optimizer(Component):
    """Computes steps from gradients. trainer/training/lr_schedule.py sets the learning rate."""

    layerwise: ClassVar[bool] = False  # a weight's step depends on the gradient of its whole tensor
    couples_tensors: ClassVar[bool] = False  # … or on the gradients of other tensors
    groups_by_place: ClassVar[bool] = False  # a tensor's group depends on the other tensors of the model
    # The registered optimizer that takes the same steps, up to rounding. `check` compares with it.
    equals: ClassVar[Equal | None] = None

    @abstractmethod
    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        """A torch optimizer over `parameters`."""
