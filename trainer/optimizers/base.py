"""The interface of an optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer as TorchOptimizer

    from trainer.models.base import Model

Equal = Literal["sgd", "momentum", "adam", "adamw"]


class Optimizer(Component):
    """Computes steps from gradients. trainer/training/lr_schedule.py sets the learning rate."""

    state_names: ClassVar[tuple[str, ...]] = ()  # what it keeps for a weight tensor, in its shape
    layerwise: ClassVar[bool] = False  # a weight's step depends on the gradient of its whole tensor
    couples_tensors: ClassVar[bool] = False  # … or on the gradients of other tensors
    groups_by_place: ClassVar[bool] = False  # a tensor's group depends on the other tensors of the model
    # The registered optimizer that takes the same steps, up to rounding. `check` compares with it.
    equals: ClassVar[Equal | None] = None

    @abstractmethod
    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        """A torch optimizer over `parameters`."""

    def of_model(self, model: nn.Module, lr: float) -> TorchOptimizer:
        """A torch optimizer over all parameters of a model, or of a rank's part of one."""
        from torch import zeros

        # torch's optimizers reject an empty list, as in a model partition without weights.
        return self.build([*model.parameters()] or [zeros(0)], lr)

    def validation_error(self, model: Model) -> str | None:
        """Return why it cannot train a model, as a predicate: "needs …, and {model} has none"; or None."""
        return None
