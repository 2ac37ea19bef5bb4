"""Top-k: only the largest gradient entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from trainer.compression.base import Compression, Compressor, ErrorFeedback

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class TopK(Compression):
    """Send the k = ratio·n largest entries: 8k(P−1) bytes (Stich et al. 2018).

    The k entries of largest magnitude and their indices, with error feedback. k counts over the whole
    gradient, not per layer. The additions of Lin et al. 2018 ("Deep Gradient Compression") are left out:
    momentum correction, clipping and warm-up.

    k is rounded, and at least 1. Each entry is a float32 and an int32, and every rank needs the entries of
    all. That is less than the all-reduce only while ratio < 1/P.

    Source: Stich et al. 2018, "Sparsified SGD with Memory".
    """

    ratio: float = Field(0.01, gt=0, le=1, description="share of the gradient's entries that is sent")

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return TopKCompressor(comm, sum(shape.numel() for shape in shapes), self.ratio)


class TopKCompressor(ErrorFeedback):
    """A message holds k values, then their k indices (int32) as the bits of float32."""

    def __init__(self, comm: Communicator, parameters: int, ratio: float) -> None:
        super().__init__(comm, parameters)
        self._k = max(1, round(ratio * parameters))

    def encode(self, gradient: Tensor) -> Tensor:
        import torch

        indices = gradient.abs().topk(self._k, sorted=False).indices
        return torch.cat([gradient[indices], indices.int().view(torch.float32)])

    def add(self, message: Tensor, total: Tensor) -> None:
        import torch

        values, indices = message.split(self._k)
        total.index_add_(0, indices.view(torch.int32), values)
