"""Transport `nccl`: torch.distributed's process group between GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import CommunicationError
from trainer.comm.gloo import TorchDistCommunicator
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from trainer.core.context import NodeContext


class NcclCommunicator(TorchDistCommunicator):
    """NVIDIA's NCCL; every rank needs a GPU of its own."""

    group: ClassVar[str] = "nccl"
    device: str = "cuda"

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> TorchDistCommunicator:
        import torch

        found = torch.cuda.device_count()  # 0 too where torch is a CPU build
        if context.local_rank >= found:
            raise CommunicationError(
                f"transport nccl needs a GPU for every rank of a machine: rank {context.rank} "
                f"would use GPU {context.local_rank}, torch {torch.__version__} finds {found}"
            )
        torch.cuda.set_device(context.local_rank)
        clock.wall = settled(clock.wall, torch.cuda.current_stream)
        comm = super().connect(context, clock)
        comm.device = f"{cls.device}:{context.local_rank}"
        return comm

    @classmethod
    def _options(cls, context: NodeContext) -> dict[str, Any]:
        import torch

        # Named, the ranks meet at once and not in the first collective, which is timed.
        return {"device_id": torch.device(cls.device, context.local_rank)}


def settled(wall: Callable[[], float], stream: Callable[[], Any]) -> Callable[[], float]:
    """`wall`, read only after the GPU has done what it was given.

    Kernels run behind the host's back: without this, a phase would end when its kernels are queued and
    the next one would be charged for them. Of the stream that computes and not of the whole device: a
    bucket of DDP's that travels meanwhile is not to be waited for.
    """

    def read() -> float:
        stream().synchronize()
        return wall()

    return read
