"""Noise: random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trainer.attacks.base import Attack, Knowledge

if TYPE_CHECKING:
    from torch import Tensor


class Noise(Attack):
    """Send Gaussian noise with mean 0 instead of its own vector (Blanchard et al. 2017).

    The vector is N(0, `std`²) in each coordinate. The paper's standard deviation is 200, for gradients.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    the Gaussian attack of the experiments.
    """

    std: float = Field(1.0, gt=0, le=1000, description="standard deviation of each coordinate")

    def vector(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        import numpy as np
        import torch

        noise = knowledge.rng.standard_normal(len(own), dtype=np.float32)
        return torch.from_numpy(noise).to(own.device) * self.std
