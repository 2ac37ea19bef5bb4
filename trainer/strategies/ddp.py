"""DDP: torch's DistributedDataParallel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.compression.base import Compression
from trainer.compression.none import NoneCompression
from trainer.compression.power_sgd import PowerSgd
from trainer.core.registry import ComponentRegistry
from trainer.core.strategy import Interval, Strategy, Uneven
from trainer.spec.registries import COMPRESSIONS
from trainer.strategies.all_reduce import AllReduce

if TYPE_CHECKING:
    from trainer.training.session import Session


# The compressions that torch has as a communication hook.
HOOKS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression of ddp", {name: COMPRESSIONS.entries[name] for name in ("none", "fp16", "power_sgd")}
)
# More than any gradient: everything goes into one bucket.
ONE_BUCKET_MIB = 2**20
BUCKET_MIB = 25  # the library's own


class Ddp(Strategy):
    """Train with torch's DistributedDataParallel (Li et al. 2020).

    The same mathematics as `all_reduce`. The library splits the gradient into buckets and reduces one
    while the backward pass computes the next. What the ranks still wait for after the last bucket is
    exposed communication.

    Source: Li et al. 2020, "PyTorch Distributed".
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "nccl")
    needs_thread: ClassVar[bool] = True
    overlaps_backward: ClassVar[bool] = True
    equivalent: ClassVar[str | None] = "all_reduce"
    every_gradient: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    compression: Annotated[Compression, HOOKS] = Field(
        "none", validate_default=True, description="how gradients are compressed before they are sent"
    )

    def stand_in(self) -> Strategy | None:
        if not isinstance(self.compression, NoneCompression):
            return None
        return AllReduce(uneven=self.uneven, compression=self.compression, bucket_mib=BUCKET_MIB)

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def train(self, session: Session) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.parallel.ddp_buckets import Alone, DdpReplica, averaging

        # Gradient and bucket differ only in the stride of dimensions of size 1, which has no meaning.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        ddp = DistributedDataParallel(
            session.task.build_model(session.rank, device=session.comm.device),
            process_group=Alone(),  # the hook below averages
            broadcast_buffers=False,  # they are averaged after each epoch, as with other strategies
            find_unused_parameters=bool(session.spec.model.unused),
            # PowerSGD's hook blocks, so the exchanges of several buckets would not overlap.
            bucket_cap_mb=ONE_BUCKET_MIB if isinstance(self.compression, PowerSgd) else None,
        )
        seed = session.task.rngs.torch_seed("compression")
        ddp.register_comm_hook(None, averaging(session.comm, self.compression, seed))
        replica = DdpReplica(ddp, session.task, session.clock)
        # After the first pass DDP rebuilds its buckets in another order, which changes the rounding.
        session.start(replica, warm_up=replica.backward)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # DDP averages the gradients in here
                replica.step()
