"""torch's optimiser around a rule that is written by hand: so every strategy can use it as any other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from trainer.optimizers.base import TextbookRule


class TextbookOptimizer(torch.optim.Optimizer):
    """Takes the rule's step with each tensor that has a gradient."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, rule: TextbookRule) -> None:
        super().__init__(parameters, {"lr": lr})
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step along the gradients that the parameters have."""
        for group in self.param_groups:
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                memory = self.state[theta]
                if not memory:
                    memory.update(self._rule.initial_state(theta), step=0)
                memory["step"] += 1
                self._rule.update(theta, theta.grad, group["lr"], memory)
