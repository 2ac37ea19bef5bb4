"""DDP: torch's DistributedDataParallel, the industry's all-reduce."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar

from trainer.strategies.base import Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future

    from trainer.comm.base import Communicator
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task


class Ddp(Strategy):
    """torch.nn.parallel.DistributedDataParallel (Li et al. 2020, "PyTorch Distributed").

    The same mathematics as `all_reduce`; the library cuts the gradient into buckets and sends one
    while the next is still being computed. What is booked as communication is the part that the
    computation does not hide: from the last bucket's hand-over to the end of the backward pass.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "nccl")

    uneven: Uneven = "join"

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.strategies.loop import Loop
        from trainer.strategies.replica import Replica

        # Gradient and bucket differ in the stride of dimensions of size 1 alone, where it means nothing.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        loop = Loop(context, task, events)
        ddp = DistributedDataParallel(task.build_model(context.rank, device=loop.comm.device))
        buckets = Buckets(loop.comm)
        ddp.register_comm_hook(None, lambda _, bucket: buckets.mean(bucket))
        replica = Replica(ddp, task, loop.clock)
        loop.start(replica)
        for epoch in loop.epochs(replica):
            for batch in loop.batches_in_step(epoch, replica, self.uneven):
                replica.backward(batch, weight=batch.share * context.size)
                buckets.book_exposed()
                replica.step()
        return loop.result(replica)


class Buckets:
    """DDP's default reduction of a bucket, counted."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._handed_over = comm.clock.now()

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """Start the bucket's all-reduce: the communication hook."""
        import torch.distributed as dist

        buffer = bucket.buffer()
        size = self._comm.size
        self._comm.traffic.bytes_sent += 2 * buffer.numel() * buffer.element_size() * (size - 1) / size
        if bucket.is_last():  # they come in order; on a GPU, reading the clock waits for what is computed
            self._handed_over = self._comm.clock.now()
        reduction = dist.all_reduce(buffer.div_(size), async_op=True).get_future()
        reduced: Future[Tensor] = reduction.then(lambda done: done.value()[0])
        return reduced

    def book_exposed(self) -> None:
        """After a backward pass: book what was left to wait for as a meeting of all ranks."""
        (entered, cpu), (left, cpu_left) = self._handed_over, self._comm.clock.now()
        # CPU time too: gloo's own threads work in this process.
        self._comm.clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        self._comm.traffic.meetings.append((entered, left))
