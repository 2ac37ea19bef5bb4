"""FSDP: torch's fully sharded data parallelism. A rank keeps its part of weights, gradients and moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class Fsdp(Strategy):
    """Shard weights, gradients and optimizer state with torch's FSDP2 (Zhao et al. 2023).

    The same mathematics as `all_reduce`. Every rank keeps P-th parts: its rows of each tensor, their
    gradient and what the optimiser remembers of them. A block's weights come together in an all-gather
    when it is their turn, forward and again backward; a reduce-scatter takes the mean of the gradient
    apart. For n bytes of weights that is 3n(P-1)/P in a step, half as much again as an all-reduce.
    reshard: without it a block's weights stay from its forward to its backward pass, as in stage 2: no
    second all-gather, 2n(P-1)/P. A tensor has the same number of rows on all ranks but for the last; what
    that lacks is filled up with zeros, which are sent and held too.

    Over gloo torch waits for every collective before it computes on, so all of it is in sight. On GPUs it
    would not, and would have to be timed otherwise: `nccl` is left out.

    Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
    `fully_shard` is ZeRO stage 3 (Rajbhandari et al. 2020, "ZeRO", Sec. 5.3).
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo",)
    synchronous: ClassVar[bool] = True
    full_gradients: ClassVar[bool] = False

    reshard: bool = Field(
        True, description="let go of a block's weights between forward and backward pass, and gather twice"
    )
    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        from trainer.parallel.sharding import ShardedReplica

        replica = ShardedReplica(
            session.task.build_model(session.rank), session.task, session.comm, reshard=self.reshard
        )
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                replica.step()
