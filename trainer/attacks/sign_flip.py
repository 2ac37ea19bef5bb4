"""Sign flip: the opposite of what the node has learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trainer.attacks.base import Attack, Knowledge

if TYPE_CHECKING:
    from torch import Tensor


class SignFlip(Attack):
    """Send −`scale` times its own vector (Li et al. 2019).

    Source: Li et al. 2019, "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
    from Heterogeneous Datasets", the sign-flipping attack of the experiments.
    """

    scale: float = Field(1.0, gt=0, le=1000, description="factor of the vector")

    def vector(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        return own * -self.scale
