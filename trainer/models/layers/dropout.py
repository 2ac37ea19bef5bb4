"""Dropout that draws from a generator of its own, of single activations or of whole channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Elementwise dropout after Srivastava et al. 2014, scaled at training time.

    torch's nn.Dropout draws from the process-wide generator: ranks that are threads of one process
    would then draw from each other's stream, and the same seed would no longer give the same weights
    on every transport.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        return x * self.factors(x)

    def factors(self, x: Tensor) -> Tensor:
        """By what each number of x is multiplied, drawn anew: 0, or 1 / (1 - probability)."""
        keep = 1 - self.probability
        return torch.empty_like(x).bernoulli_(keep, generator=self.generator).div_(keep)


class ChannelDropout(Dropout):
    """Dropout of a sample's whole channels after Tompson et al. 2015 ("Efficient Object Localization Using
    Convolutional Networks", Sec. 3.2), where neighbours in a channel say nearly the same. torch: Dropout2d.
    """

    def factors(self, x: Tensor) -> Tensor:
        """As of Dropout, one for each channel of each sample: shape (batch, channels, 1, 1)."""
        return super().factors(x.new_empty(*x.shape[:2], 1, 1))
