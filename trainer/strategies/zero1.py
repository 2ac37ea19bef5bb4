"""ZeRO-1: replicas with the optimizer state sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Strategy, Uneven
from trainer.models.base import several_types

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.comm.nonblocking import Request
    from trainer.models.base import Model
    from trainer.training.session import Session


class Zero1(Strategy):
    """Shard the optimizer state over the ranks, ZeRO stage 1 (Rajbhandari et al. 2020).

    The same mathematics as `all_reduce`. Each tensor has an owner. The gradient is averaged in buckets, as
    by `ddp`; the owner updates the tensor, with the only copy of its optimizer state, and broadcasts it.
    For n bytes of weights a rank sends 2n(P−1)/P for the mean and n(P−1)/P on average for the broadcasts.
    The paper sends two thirds of that, since it reduces only the owner's part of the gradient. Owners are
    assigned by size, largest tensor first, and tensors are not split, so the largest tensor limits the
    balance.

    Source: Rajbhandari et al. 2020, "ZeRO", Sec. 5.1. Owners are assigned as by torch's
    ZeroRedundancyOptimizer.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    overlaps_backward: ClassVar[bool] = True
    equals: ClassVar[Equal | None] = "all_reduce"
    every_gradient: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return several_types(model)

    def stand_in(self) -> Strategy | None:
        return self

    def train(self, session: Session) -> None:
        from trainer.parallel.buckets import Buckets
        from trainer.parallel.sharding import ShardedOptimizerReplica

        replica = session.replica_of(ShardedOptimizerReplica, broadcast)
        buckets = Buckets(replica, lambda part: session.comm.iall_reduce(part.div_(session.size), "sum"))
        session.start(replica, warm_up=buckets.backward)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                buckets.backward(batch, weight)  # averages a bucket while it computes the next one
                replica.step()  # broadcasts the updated tensors


def broadcast(tensor: Tensor, owner: int, comm: Communicator) -> Request:
    """Start to send a tensor, shape (n,), from its owner to all ranks."""
    return comm.ibroadcast(tensor, owner)
