"""FSDP: torch's fully sharded data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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
from trainer.strategies.zero3 import Zero3, groups

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class Fsdp(Strategy):
    """Shard weights, gradients and optimizer state with torch's FSDP2 (Zhao et al. 2023).

    The same mathematics as `all_reduce`. Each rank holds 1/P of the rows of each tensor, with their
    gradient and optimizer state. Each block's weights are all-gathered before its forward and again before
    its backward pass, while the block before it computes. A reduce-scatter averages the gradient; it
    blocks. For n bytes of weights a rank sends 3n(P−1)/P bytes a step, half as much again as an all-reduce.
    Without `reshard` weights stay gathered from forward to backward pass, as in ZeRO stage 2: 2n(P−1)/P.
    Rows are padded with zeros to a multiple of P; the padding is sent and held too. These bytes are
    counted. gloo's reduce-scatter is an all-reduce, and sends n(P−1)/P bytes more.

    With R = `replicate`, each of R groups of G = P/R neighbouring ranks shards a copy of the model: torch's
    hybrid sharding (HSDP). Put G for P above. After the reduce-scatter, ranks with the same rows all-reduce
    their mean, which blocks: 2(n/G)(R−1)/R bytes more, the only ones between groups.

    Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", Sec. 3.2.2
    for hybrid sharding. `fully_shard` is ZeRO stage 3 (Rajbhandari et al. 2020, "ZeRO", Sec. 5.3).
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    needs_thread: ClassVar[bool] = True
    overlaps_backward: ClassVar[bool] = True
    equals: ClassVar[Equal | None] = "all_reduce"
    every_gradient: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    full_gradients: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    reshard: bool = Field(
        True, description="free a block's weights after the forward pass and gather them again"
    )
    replicate: Replicate = 1
    uneven: Uneven = "join"

    @classmethod
    def layouts_on(cls, ranks: int) -> Sequence[dict[str, Any]]:
        return [{}, *({"replicate": each} for each in range(2, ranks) if ranks % each == 0)]

    @property
    def sent_per_counted(self) -> float:
        gathers = 2 if self.reshard else 1
        # The reduce-scatter is counted once, and sent twice. With copies, the share depends on the ranks.
        return (gathers + 2) / (gathers + 1) if self.replicate == 1 else 1.0

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return sharded_rows_error(model) or divisor_error("replicate", self.replicate, ranks)

    def stand_in(self) -> Strategy | None:
        return Zero3(uneven=self.uneven, reshard=self.reshard, replicate=self.replicate)

    def train(self, session: Session) -> None:
        from trainer.parallel.sharding import ShardedReplica

        shards, copies = groups(session.comm, self.replicate)
        replica = session.replica_of(ShardedReplica, shards, copies, self.reshard)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # gathers weights, reduces gradients
                replica.step()
