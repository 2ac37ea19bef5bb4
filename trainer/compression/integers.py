"""Integers of few bits: blocks of values with a scale each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.compression.base import Compression, Compressor, ErrorFeedback

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory

BLOCK = 256  # values with one scale


class Integers(Compression):
    """Integers of `bits` bits, 8 or less, in place of float32."""

    bits: ClassVar[int]

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return IntegerCompressor(comm, sum(shape.numel() for shape in shapes), self.bits)


class Int8(Integers):
    """Send 8-bit integers: 4(⌈n/256⌉ + ⌈n/4⌉)(P−1) bytes (Dettmers et al. 2022).

    Each block of 256 values has a scale, max |v| / 127, and a value is the nearest of 255 multiples of it,
    with error feedback. Every rank needs the values of all: that is less than the all-reduce up to 7 ranks.

    Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", Sec. 2.1, with evenly
    spaced values.
    """

    bits: ClassVar[int] = 8


class Int4(Integers):
    """Send 4-bit integers: 4(⌈n/256⌉ + ⌈n/8⌉)(P−1) bytes (Douillard et al. 2025).

    As `int8`, with scales max |v| / 7 and 15 multiples. The paper sends outer gradients as 4-bit floats,
    E3M0. That is less than the all-reduce up to 15 ranks.

    Source: Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", Sec. 2.3, for the
    number of bits.
    """

    bits: ClassVar[int] = 4


class IntegerCompressor(ErrorFeedback):
    """A message holds the scale of each block, then the integers, packed into the bits of float32."""

    def __init__(self, comm: Communicator, parameters: int, bits: int) -> None:
        import torch

        super().__init__(comm, parameters)
        self._largest = 2 ** (bits - 1) - 1
        self._blocks = -(-parameters // BLOCK)
        # Where the integers of a byte begin in it, and which bits they have there.
        self._shifts = torch.arange(0, 8, bits, device=comm.device, dtype=torch.uint8)
        self._mask = 2**bits - 1

    def encode(self, gradient: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import pad

        blocks = pad(gradient, (0, -len(gradient) % BLOCK)).view(self._blocks, BLOCK)
        scales = blocks.abs().amax(dim=1) / self._largest
        # Of zeros 0/0; and where a value is not finite, the scale makes the whole block so when decoded.
        multiples = (blocks / scales[:, None]).nan_to_num(0.0, 0.0, 0.0).round()
        multiples.clamp_(-self._largest, self._largest)  # the scale of the smallest numbers is rounded
        positive = (multiples.view(-1)[: len(gradient)] + self._largest).byte()
        in_bytes = pad(positive, (0, -len(positive) % (4 * len(self._shifts)))).view(-1, len(self._shifts))
        packed = (in_bytes << self._shifts).sum(dim=1, dtype=torch.uint8)
        return torch.cat([scales, packed.view(torch.float32)])

    def add(self, message: Tensor, total: Tensor) -> None:
        import torch
        from torch.nn.functional import pad

        scales, packed = message.tensor_split([self._blocks])
        positive = (packed.view(torch.uint8)[:, None] >> self._shifts) & self._mask
        whole = positive.view(-1)[: len(total)].float() - self._largest
        blocks = pad(whole, (0, -len(total) % BLOCK)).view(self._blocks, BLOCK)
        total += (blocks * scales[:, None]).view(-1)[: len(total)]
