"""Dropout of single activations or whole channels, with a random generator of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Elementwise dropout (Srivastava et al. 2014), scaled during training.

    torch's nn.Dropout draws from the process-wide generator. Ranks that are threads of one process would
    share it, and equal seeds would no longer give equal weights on every transport.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        return x * self.mask(x)

    def mask(self, x: Tensor) -> Tensor:
        """Draw the factor of every element of x: 0, or 1 / (1 - probability)."""
        keep = 1 - self.probability
        return torch.empty_like(x).bernoulli_(keep, generator=self.generator).div_(keep)


class ChannelDropout(Dropout):
    """Dropout of whole channels of a sample, torch's Dropout2d, with a generator of its own.

    Source: Tompson et al. 2015, "Efficient Object Localization Using Convolutional Networks", Sec. 3.2:
    neighbouring pixels of a channel are strongly correlated, so dropping single ones does not regularise.
    """

    def mask(self, x: Tensor) -> Tensor:
        """Draw one factor for each channel of each sample: shape (batch, channels, 1, 1)."""
        return super().mask(x.new_empty(*x.shape[:2], 1, 1))


class TokenDropout(Dropout):
    """Dropout of some tokens: it draws the mask of all tokens, as serial training does."""

    def __init__(self, full: Dropout, first: int, parts: int) -> None:
        super().__init__(full.probability, full.generator)
        self._first, self._parts = first, parts

    def mask(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        full = super().mask(x.new_empty(batch, tokens * self._parts, width))
        return full[:, self._first : self._first + tokens]
