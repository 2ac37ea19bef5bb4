"""Transport `nccl`: torch.distributed between GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.errors import CommunicationError
from trainer.comm.gloo import TorchDistCommunicator
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from trainer.core.context import NodeContext


class NcclCommunicator(TorchDistCommunicator):
    """NVIDIA's NCCL; every rank needs a GPU of its own."""

    group: ClassVar[str] = "nccl"
    times_starts: ClassVar[bool] = False
    device: str = "cuda"

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> TorchDistCommunicator:
        import torch

        found = torch.cuda.device_count()  # 0 too where torch is a CPU build
        if context.local_rank >= found:
            raise CommunicationError(
                f"nccl needs one GPU per rank: rank {context.rank} would use GPU {context.local_rank}, "
                f"torch {torch.__version__} finds {found} GPUs"
            )
        torch.cuda.set_device(context.local_rank)
        clock.wall = synchronized(clock.wall, torch.cuda.current_stream)
        comm = super().connect(context, clock)
        comm.device = f"{cls.device}:{context.local_rank}"
        return comm

    @classmethod
    def _options(cls, context: NodeContext) -> dict[str, Any]:
        import torch

        # Connects the ranks now and not in the first collective, which is timed.
        return {"device_id": torch.device(cls.device, context.local_rank)}


def synchronized(wall: Callable[[], float], stream: Callable[[], Any]) -> Callable[[], float]:
    """`wall`, read after the GPU has finished its queued kernels.

    Kernels run asynchronously: without this, a phase would end when its kernels are queued, and the next
    phase would include their time. Synchronizes the compute stream, not the device, so that it does not
    wait for DDP's buckets that other streams all-reduce.
    """

    def read() -> float:
        stream().synchronize()
        return wall()

    return read
