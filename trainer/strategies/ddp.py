"""DDP: torch's DistributedDataParallel, the industry's all-reduce."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from trainer.compression.base import Compression
from trainer.compression.fp16 import Fp16
from trainer.compression.power_sgd import PowerSgd
from trainer.core.registry import ComponentRegistry
from trainer.core.strategy import Interval, Strategy, Uneven
from trainer.spec.registries import COMPRESSIONS

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import AllreduceOptions, GradBucket
    from torch.distributed import Work
    from torch.futures import Future

    from trainer.comm.base import Communicator
    from trainer.training.session import Session


# Those that torch has as a communication hook.
HOOKS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression of ddp", {name: COMPRESSIONS.entries[name] for name in ("none", "fp16", "power_sgd")}
)
# Where a hook can work on one bucket alone: more than any gradient has.
ONE_BUCKET_MIB = 2**20


class Ddp(Strategy):
    """Train with torch's DistributedDataParallel (Li et al. 2020).

    The same mathematics as `all_reduce`; the library cuts the gradient into buckets and sends one
    while the next is still being computed. What is booked as communication is the part that the
    computation does not hide: from the last bucket's hand-over to the end of the backward pass. What
    compressing that bucket computes is in it.

    Source: Li et al. 2020, "PyTorch Distributed".
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "nccl")
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    compression: Annotated[Compression, HOOKS] = Field(
        "none", validate_default=True, description="how gradients are made smaller before they are sent"
    )

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def train(self, session: Session) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.training.replica import Replica

        # Gradient and bucket differ in the stride of dimensions of size 1 alone, where it means nothing.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        ddp = DistributedDataParallel(
            session.task.build_model(session.rank, device=session.comm.device),
            # PowerSGD's hook waits, in a thread of gloo's, for its own next exchanges. gloo has two: two
            # buckets at once would wait there for ever.
            broadcast_buffers=False,  # replicas average them after each epoch, as with other strategies
            bucket_cap_mb=ONE_BUCKET_MIB if isinstance(self.compression, PowerSgd) else None,
        )
        buckets = Buckets(session.comm, self.compression, session.task.rngs.number("compression"))
        ddp.register_comm_hook(None, lambda _, bucket: buckets.mean(bucket))
        replica = Replica(ddp, session.task, session.clock)
        # DDP makes its buckets anew after its first pass, in another order, which is another rounding.
        session.start(replica, warm_up=replica.backward)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                buckets.book_exposed()
                replica.step()


class Buckets:
    """torch's own reduction of a bucket, timed; what it sends is counted."""

    def __init__(self, comm: Communicator, compression: Compression, seed: int) -> None:
        """seed: of power_sgd's first matrices, the same on all ranks."""
        self._comm = comm
        self._hook, self._state = _hook(compression, CountedGroup(comm), seed)
        self._handed_over = comm.clock.now()

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """Start the bucket's reduction: the communication hook."""
        if bucket.is_last():  # they come in order; on a GPU, reading the clock waits for what is computed
            self._handed_over = self._comm.clock.now()
        reduced: Future[Tensor] = self._hook(self._state, bucket)
        return reduced

    def book_exposed(self) -> None:
        """After a backward pass: book what was left to wait for as a meeting of all ranks."""
        (entered, cpu), (left, cpu_left) = self._handed_over, self._comm.clock.now()
        # CPU time too: gloo's own threads work in this process.
        self._comm.clock.transfer("compute", "communicate", left - entered, cpu_left - cpu)
        self._comm.traffic.collectives.append((entered, left))


class CountedGroup:
    """The default process group as torch's hooks use it: what is handed to the library is counted."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def size(self) -> int:
        return self._comm.size

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions) -> Work:
        import torch.distributed as dist

        world: Any = dist.group.WORLD
        payload = sum(tensor.nbytes for tensor in tensors)
        self._comm.traffic.bytes_sent += 2 * payload * (self.size() - 1) / self.size()
        work: Work = world.allreduce(tensors, options)
        return work


def _hook(compression: Compression, group: CountedGroup, seed: int) -> tuple[Any, Any]:
    """torch's communication hook for a compression, and the state that it wants."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    if group.size() == 1:  # nothing is sent, so nothing is compressed
        return allreduce_hook, group
    match compression:
        case Fp16():
            return fp16_compress_hook, group
        case PowerSgd(rank=rank):
            return powerSGD_hook, PowerSGDState(
                group,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=2,  # the earliest: DDP makes its buckets anew after the first step
                min_compression_rate=1,
                orthogonalization_epsilon=1e-8,  # without, a gradient of zeros becomes nan
                random_seed=seed % 2**32,
            )
        case _:
            return allreduce_hook, group
