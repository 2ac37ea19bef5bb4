"""fp16: gradients in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.compression.base import Compression, Compressor

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class Fp16(Compression):
    """Send half-precision values: 8⌈n/(2P)⌉(P−1) bytes (Micikevicius et al. 2018).

    IEEE binary16 on the link, sums in float32. A reduce-scatter (as an all-to-all) gives each rank the P
    slices that it averages; an all-gather returns the means. A slice is padded to whole pairs of values,
    so a rank sends up to 8(P−1) bytes more than half of an all-reduce. MPI cannot sum float16, and an
    all-gather of whole gradients would send more than the all-reduce from five ranks on. In ddp torch's own
    hook is used, which sums in float16 and sends 4n(P−1)/P bytes.

    There is no loss scaling and no error feedback. Values beyond 65504 become infinite, which ends the run;
    values below 3e-8 become 0.

    Source: Micikevicius et al. 2018, "Mixed Precision Training", for the number format.
    """

    not_checkpointed: ClassVar[str | None] = None

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return Fp16Compressor(comm)


class Fp16Compressor(Compressor):
    """A reduce-scatter and an all-gather of float16 pairs, each pair as the bits of a float32."""

    def _mean(self, gradient: Tensor, lr: float) -> None:
        import torch

        size, n = self.comm.size, gradient.numel()
        pairs = -(-n // (2 * size))  # float16 pairs in the share of a rank
        halves = gradient.new_zeros(size, 2 * pairs, dtype=torch.float16)
        halves.view(-1)[:n] = gradient
        own_share = self.comm.all_to_all(halves.view(torch.float32)).view(torch.float16)
        mean = own_share.float().mean(dim=0).half()
        shares = self.comm.all_gather(mean.view(torch.float32)).view(torch.float16)
        gradient.copy_(shares.view(-1)[:n])
