"""DDP: torch's DistributedDataParallel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from trainer.compression.base import Compression
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.core.registry import ComponentRegistry
from trainer.core.strategy import Interval, Strategy, Uneven
from trainer.core.trace import Kind
from trainer.spec.registries import COMPRESSIONS

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import AllreduceOptions, GradBucket
    from torch.distributed import Work
    from torch.futures import Future

    from trainer.comm.base import Communicator
    from trainer.training.session import Session


# The compressions that torch has as a communication hook.
HOOKS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression of ddp", {name: COMPRESSIONS.entries[name] for name in ("none", "fp16", "power_sgd")}
)
# More than any gradient: everything goes into one bucket.
ONE_BUCKET_MIB = 2**20


class Ddp(Strategy):
    """Train with torch's DistributedDataParallel (Li et al. 2020).

    The same mathematics as `all_reduce`. The library splits the gradient into buckets and reduces one
    while the backward pass computes the next. Only the exposed part is booked as communication: from the
    hand-over of the last bucket to the end of the backward pass. It includes compressing that bucket.

    Source: Li et al. 2020, "PyTorch Distributed".
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "nccl")
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    compression: Annotated[Compression, HOOKS] = Field(
        "none", validate_default=True, description="how gradients are compressed before they are sent"
    )

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def train(self, session: Session) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.training.replica import Replica

        # Gradient and bucket differ only in the stride of dimensions of size 1, which has no meaning.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        ddp = DistributedDataParallel(
            session.task.build_model(session.rank, device=session.comm.device),
            broadcast_buffers=False,  # they are averaged after each epoch, as with other strategies
            # PowerSGD's hook blocks one of gloo's two threads until its next exchange is done. Two
            # buckets at a time would block both for ever.
            bucket_cap_mb=ONE_BUCKET_MIB if isinstance(self.compression, PowerSgd) else None,
        )
        buckets = Buckets(session.comm, self.compression, session.task.rngs.torch_seed("compression"))
        ddp.register_comm_hook(None, lambda _, bucket: buckets.mean(bucket))
        replica = Replica(ddp, session.task, session.clock)
        # After the first pass DDP rebuilds its buckets in another order, which changes the rounding.
        session.start(replica, warm_up=replica.backward)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # DDP averages the gradients in here
                buckets.book_exposed()
                replica.step()


class Buckets:
    """torch's reduction of DDP's buckets, timed and counted."""

    def __init__(self, comm: Communicator, compression: Compression, seed: int) -> None:
        """seed: for the initial matrices of power_sgd, the same on all ranks."""
        self._comm = comm
        self._hook, self._state = _hook(compression, CountedGroup(comm), seed)
        self._handed_over = comm.clock.now()

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """The communication hook: start to reduce the bucket."""
        clock = self._comm.clock
        if bucket.is_last():  # on a GPU reading the clock synchronises, so read it once
            self._handed_over = clock.now()
        reduced: Future[Tensor] = self._hook(self._state, bucket)
        if clock.tracer and bucket.is_last():
            clock.tracer.hold()  # what follows is part of the wait for all buckets
        return reduced

    def book_exposed(self) -> None:
        """After a backward pass: book the exposed communication, as a collective of all ranks."""
        clock = self._comm.clock
        (entered, cpu), (left, cpu_left) = self._handed_over, clock.now()
        # CPU time too: the rank's thread copies the reduced buckets.
        clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        self._comm.traffic.collectives.append((entered, left))
        if clock.tracer:
            self._comm.trace_at(Kind.WAIT_STARTED, entered, left)
            clock.tracer.release(compute_s=cpu_left - cpu)  # a replay computes it after the wait


class CountedGroup:
    """The default process group as torch's hooks use it, with a count of the bytes."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def size(self) -> int:
        return self._comm.size

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> Work:
        import torch.distributed as dist

        world: Any = dist.group.WORLD
        payload = sum(tensor.nbytes for tensor in tensors)
        self._comm.traffic.bytes_sent += 2 * payload * (self.size() - 1) / self.size()
        if (clock := self._comm.clock).tracer:
            # The rank's thread has computed until now. The later exchanges of a PowerSGD bucket are
            # handed over by a thread of gloo, which has its own CPU time.
            now = clock.lap()[0] if clock.tracer.on_own_thread else clock.wall()
            self._comm.trace_at(Kind.START_ALL_REDUCE, now, now, payload)
        work: Work = world.allreduce(tensors, options)
        return work


def _hook(compression: Compression, group: CountedGroup, seed: int) -> tuple[Any, Any]:
    """torch's communication hook for a compression, and the hook's state."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    if group.size() == 1:  # nothing is sent
        return allreduce_hook, group
    match compression:
        case Fp16():
            return fp16_compress_hook, group
        case PowerSgd(rank=rank):
            return powerSGD_hook, PowerSGDState(
                group,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=2,  # the earliest: DDP rebuilds its buckets after the first step
                min_compression_rate=1,
                orthogonalization_epsilon=1e-8,  # without it a gradient of zeros becomes nan
                random_seed=seed % 2**32,
            )
        case _:
            return allreduce_hook, group
