"""fp16: gradients travel in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.compression.base import Compression, Compressor

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class Fp16(Compression):
    """Send half-precision values: 4n(P−1)/P bytes (Micikevicius et al. 2018).

    IEEE binary16 on the link, sums in float32.

    After Micikevicius et al. 2018 ("Mixed Precision Training"), of which it takes the number format
    alone: no scaling. Numbers beyond 65504 become infinite, which ends the run, and those below 3e-8
    zero; the rounding, once on the way there and once on the way back, is not fed back.

    MPI cannot add halves, and gathering all of everybody's would send more than the all-reduce from
    five ranks on. So it is an all-reduce by hand: every rank gets a P-th of everybody's gradient, adds it
    up, and sends the mean to all. In ddp torch's hook does it, which adds in halves.

    Sends 8c(P-1) bytes with c = ceil(n / 2P): half of the all-reduce, whatever P.
    """

    not_checkpointed: ClassVar[str | None] = None

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return Fp16Compressor(comm)


class Fp16Compressor(Compressor):
    """A reduce-scatter and an all-gather of halves, two to a float32."""

    def _mean(self, gradient: Tensor) -> None:
        import torch

        size, n = self.comm.size, gradient.numel()
        pairs = -(-n // (2 * size))  # of halves in a P-th
        halves = gradient.new_zeros(size, 2 * pairs, dtype=torch.float16)
        halves.view(-1)[:n] = gradient
        mine = self.comm.all_to_all(halves.view(torch.float32)).view(torch.float16)
        mean = mine.float().mean(dim=0).half()
        everyones = self.comm.all_gather(mean.view(torch.float32)).view(torch.float16)
        gradient.copy_(everyones.view(-1)[:n])
