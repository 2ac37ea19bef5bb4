"""Top-k: only the largest entries of the gradient are sent."""

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

    With error feedback.

    What Lin et al. 2018 ("Deep Gradient Compression") add to it is left out: momentum correction,
    clipping, warm-up; and the k entries are those of the whole gradient, not of each layer.

    Sends 8k(P-1) bytes with k = max(1, round(ratio·n)): each entry is a float32 and an int32, and every
    rank needs everybody's. That is less than the all-reduce only while ratio < 1/P.
    """

    ratio: float = Field(0.01, gt=0, le=1, description="share of the gradient's entries that is sent")

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return TopKCompressor(comm, sum(shape.numel() for shape in shapes), self.ratio)


class TopKCompressor(ErrorFeedback):
    """A message is k values and then, as bits of float32, their k places."""

    def __init__(self, comm: Communicator, parameters: int, ratio: float) -> None:
        super().__init__(comm, parameters)
        self._k = max(1, round(ratio * parameters))

    def encode(self, gradient: Tensor) -> Tensor:
        import torch

        places = gradient.abs().topk(self._k, sorted=False).indices
        return torch.cat([gradient[places], places.int().view(torch.float32)])

    def add(self, message: Tensor, total: Tensor) -> None:
        import torch

        values, places = message.split(self._k)
        total.index_add_(0, places.view(torch.int32), values)
