"""The base of optimizers with weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from trainer.optimizers.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class DecayingOptimizer(Optimizer):
    """An optimizer with weight decay, from which biases and norms can be left out."""

    weight_decay: float
    decay_vectors: bool = Field(
        True, description="weight decay also of biases and norms: of weights with fewer than two dimensions"
    )

    @property
    def without_effect(self) -> dict[str, str]:
        return {} if self.weight_decay else {"decay_vectors": "weight_decay: 0"}

    def groups(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """The groups of torch's optimizer: what decays, and what does not."""
        of: dict[float, list[Tensor]] = {}
        for each in parameters:
            decays = self.decay_vectors or each.dim() > 1
            of.setdefault(self.weight_decay if decays else 0.0, []).append(each)
        return [{"params": params, "weight_decay": decay} for decay, params in of.items()]
