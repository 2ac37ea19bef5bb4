"""A torch optimizer around an update rule, so that every strategy can use the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]


class UpdateRuleOptimizer(torch.optim.Optimizer):
    """Applies an update rule to each tensor that has a gradient."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        initial_state: Callable[[Tensor], State],
        update: Callable[[Tensor, Tensor, float, State], None],
    ) -> None:
        """
        Args:
            initial_state: See TextbookOptimizer.initial_state.
            update: See TextbookOptimizer.update.
        """
        super().__init__(groups, {"lr": lr})
        self._initial_state, self._update = initial_state, update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step along the gradients of the parameters."""
        for group in self.param_groups:
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                state = self.state[theta]
                if not state:
                    state.update(self._initial_state(theta), step=0)
                state.update(step=state["step"] + 1, weight_decay=group.get("weight_decay", 0.0))
                self._update(theta, theta.grad, group["lr"], state)


class SeveralOptimizers(torch.optim.Optimizer):
    """Steps each group of weights by the optimizer that has made it. State and groups are in one place."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = [(each, len(each.param_groups)) for each in optimizers]
        super().__init__([group for each in optimizers for group in each.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step along the gradients of the parameters."""
        first = 0
        for optimizer, groups in self._optimizers:
            # A restored state has replaced them.
            optimizer.param_groups = self.param_groups[first : first + groups]
            optimizer.state = self.state
            optimizer.step()
            first += groups
