"""Sign: one bit per gradient entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.compression.base import Compression, Compressor, ErrorFeedback

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class Sign(Compression):
    """Send one bit per entry, one scale per tensor: 4(⌈n/32⌉ + L)(P−1) bytes (Karimireddy et al. 2019).

    EF-signSGD: of a tensor v with d entries it sends ‖v‖₁/d · sign(v), with error feedback. sign(0) is +1.

    L is the number of parameter tensors. Every rank needs all signs: for small L that is less than the
    all-reduce up to 63 ranks.

    Source: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    Sec. 3.
    """

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return SignCompressor(comm, shapes)


class SignCompressor(ErrorFeedback):
    """A message holds one scale per tensor, then the packed signs of all entries as the bits of float32."""

    def __init__(self, comm: Communicator, shapes: Sequence[Size]) -> None:
        import torch

        self._lengths = [shape.numel() for shape in shapes]
        super().__init__(comm, sum(self._lengths))
        self._bits = torch.arange(8, device=comm.device, dtype=torch.uint8)  # bit positions in a byte

    def encode(self, gradient: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import pad

        scales = torch.stack([tensor.abs().mean() for tensor in gradient.split(self._lengths)])
        positive = pad((gradient >= 0).byte(), (0, -len(gradient) % 32)).view(-1, 8)
        packed = (positive << self._bits).sum(dim=1, dtype=torch.uint8)
        return torch.cat([scales, packed.view(torch.float32)])

    def add(self, message: Tensor, total: Tensor) -> None:
        import torch

        scales, packed = message.tensor_split([len(self._lengths)])
        positive = (packed.view(torch.uint8).unsqueeze(1) >> self._bits) & 1
        signs = positive.view(-1)[: len(total)].float() * 2 - 1
        for tensor, scale, sign in zip(
            total.split(self._lengths), scales, signs.split(self._lengths), strict=True
        ):
            tensor.add_(scale * sign)
