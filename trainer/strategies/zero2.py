"""ZeRO-2: replicas with gradients and optimizer state sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.comm.nonblocking import Request
    from trainer.training.session import Session


class Zero2(Strategy):
    """Shard gradients and optimizer state over the ranks, ZeRO stage 2 (Rajbhandari et al. 2020).

    Training is mathematically equal to `all_reduce`. Each of the P ranks has all weights. The weights of a
    block are padded with zeros to a multiple of P and cut into P equal parts. Rank i updates part i, and
    only this rank has the optimizer state of the part. As soon as the backward pass has computed the
    gradient of a block, a reduce-scatter begins to give each rank the mean gradient of its part. The
    gradient of the next block is computed meanwhile; then the rank frees that of this one. After the step,
    all-gathers distribute the updated parts.

    For n bytes of weights, a rank sends n(P−1)/P bytes for the gradients and as many for the weights. The
    sum is that of an all-reduce. The reduce-scatter is implemented as an all-to-all, after which each rank
    adds up the parts that it has received. With `accumulate`, ranks exchange the gradient of each
    micro-batch, because no rank stores the full gradient between micro-batches.

    Source: Rajbhandari et al. 2020, "ZeRO", Sec. 5.2 and 7.2.1.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    every_gradient: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    full_gradients: ClassVar[bool] = False
    needs_thread: ClassVar[bool] = True
    overlaps_backward: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"

    def stand_in(self) -> Strategy | None:
        return self

    def train(self, session: Session) -> None:
        from trainer.parallel.sharded_gradient import ShardedGradientReplica

        replica = session.replica_of(ShardedGradientReplica, reduce_scatter, all_gather)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The sum of the gradients, each with its share, is the mean over the samples of the step.
                replica.backward(batch, batch.share)  # reduce-scatters the gradient of each block
                replica.step()  # all-gathers the weights


def reduce_scatter(gradient: Tensor, comm: Communicator) -> Request:
    """Start to sum this rank's part of the gradient over ranks, shape (n/P,). gradient: shape (n,)."""
    return comm.ireduce_scatter(gradient)


def all_gather(part: Tensor, comm: Communicator) -> Request:
    """Start to gather the parts of all ranks, shape (P, n/P). part: shape (n/P,)."""
    return comm.iall_gather(part)
