"""ZeRO-3: weights, gradients and optimizer state sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import (
    CPU_TRANSPORTS,
    Equal,
    Interval,
    Replicate,
    Strategy,
    Uneven,
    divisor_error,
)
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

    With R = `replicate`, each of R groups of G = P/R neighbouring ranks shards a copy of the model: hybrid
    sharding. Put G for P above. After a reduce-scatter in the group, ranks with the same rows all-reduce
    the mean of these, which blocks: 2(n/G)(R−1)/R bytes more. Only these pass between groups. A rank holds
    1/G of the state. R = P is `all_reduce` by blocks.

    Sources: Rajbhandari et al. 2020, "ZeRO", Sec. 5.3 and 7.2.2; Zhao et al. 2023, "PyTorch FSDP", Sec.
    3.2.2, for hybrid sharding.
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
    replicate: Replicate = 1
    uneven: Uneven = "join"

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return sharded_rows_error(model) or divisor_error("replicate", self.replicate, ranks)

    def stand_in(self) -> Strategy | None:
        return self

    def train(self, session: Session) -> None:
        from trainer.parallel.sharded_weights import ShardedWeightsReplica

        shards, copies = groups(session.comm, self.replicate)

        def mean(gradient: Tensor, shards: Communicator) -> Tensor:
            rows = reduce_scatter(gradient, shards)
            if copies:
                copies.all_reduce(rows, "mean")
            return rows

        replica = session.replica_of(ShardedWeightsReplica, shards, all_gather, mean, self.reshard)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # gathers weights, reduce-scatters gradients
                replica.step()  # updates this rank's rows


def groups(comm: Communicator, copies: int) -> tuple[Communicator, Communicator | None]:
    """The ranks that shard a copy of the model, and those with this rank's rows of other copies, if any."""
    if copies == 1:
        return comm, None
    size = comm.size // copies
    return comm.split(comm.rank // size), comm.split(comm.rank % size)


def all_gather(rows: Tensor, comm: Communicator) -> Request:
    """Start to gather the rows of all ranks, shape (P, n/P). rows: shape (n/P,)."""
    return comm.iall_gather(rows)


def reduce_scatter(gradient: Tensor, comm: Communicator) -> Tensor:
    """The mean of this rank's rows over the ranks, shape (n/P,). gradient: shape (n,)."""
    return comm.reduce_scatter(gradient).div_(comm.size)
