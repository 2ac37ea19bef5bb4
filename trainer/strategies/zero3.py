"""ZeRO-3: weights, gradients and optimizer state sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Strategy, Uneven
from trainer.models.base import sharded_rows_error

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.comm.nonblocking import Request
    from trainer.models.base import Model
    from trainer.training.session import Session


class Zero3(Strategy):
    """Shard weights, gradients and optimizer state over the ranks, ZeRO stage 3 (Rajbhandari et al. 2020).

    Training is mathematically equal to `all_reduce`, and its exchanges are those of `fsdp`. Each of the P
    ranks has 1/P of the rows of each tensor, with their gradient and optimizer state. The weights of a
    block are all-gathered before its forward pass and again before its backward pass, while the passes of
    the block before go on. A reduce-scatter, which blocks, gives each rank the mean gradient of its rows.

    For n bytes of weights, a rank sends 3n(P−1)/P bytes in a step; without `reshard`, 2n(P−1)/P. Rows are
    padded with zeros to a multiple of P, and the padding is sent and held. Frozen weights are not sharded.
    With `accumulate`, all exchanges take place for each micro-batch.

    Source: Rajbhandari et al. 2020, "ZeRO", Sec. 5.3 and 7.2.2.
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

    reshard: bool = Field(
        True, description="free a block's weights after the forward pass and gather them again"
    )
    uneven: Uneven = "join"

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return sharded_rows_error(model)

    def stand_in(self) -> Strategy | None:
        return self

    def train(self, session: Session) -> None:
        from trainer.parallel.sharded_weights import ShardedWeightsReplica

        replica = session.replica_of(ShardedWeightsReplica, all_gather, reduce_scatter, self.reshard)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # gathers weights, reduce-scatters gradients
                replica.step()  # updates this rank's rows


def all_gather(rows: Tensor, comm: Communicator) -> Request:
    """Start to gather the rows of all ranks, shape (P, n/P). rows: shape (n/P,)."""
    return comm.iall_gather(rows)


def reduce_scatter(gradient: Tensor, comm: Communicator) -> Tensor:
    """The mean of this rank's rows over the ranks, shape (n/P,). gradient: shape (n,)."""
    return comm.reduce_scatter(gradient).div_(comm.size)
