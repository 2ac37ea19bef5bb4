"""No compression: a plain all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.compression.base import Compression, Compressor

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class NoneCompression(Compression):
    """Send gradients as they are: 8n(P−1)/P bytes."""

    not_checkpointed: ClassVar[str | None] = None

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return NoneCompressor(comm)


class NoneCompressor(Compressor):
    """An all-reduce."""

    def _mean(self, gradient: Tensor, lr: float) -> None:
        self.comm.all_reduce(gradient, "mean")
