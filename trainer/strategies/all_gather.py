"""All-gather: every rank receives all gradients and averages them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.aggregation.mean import MeanAggregation
from trainer.core.strategy import ALL_TRANSPORTS, Equal, Interval, Strategy, Uneven
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from trainer.training.session import Session


class AllGather(Strategy):
    """Send every gradient to every rank, which averages them itself (Thakur et al. 2005).

    The same mathematics as `all_reduce`. For n bytes of gradient and P ranks, each rank sends n(P−1) bytes
    and adds P gradients; an all-reduce sends 2n(P−1)/P: the same for two ranks, 2/P of it for more.

    aggregation: what takes the place of the average, against Byzantine nodes. Every rank computes it.

    Source: Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH".
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    aggregation: AggregationRule = Field("mean", validate_default=True)

    @property
    def claimed_equal(self) -> Equal | None:
        return self.equals if isinstance(self.aggregation, MeanAggregation) else None

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float:
        return gradient_bytes * (ranks - 1)

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                if session.takes_plain_mean(self.aggregation):
                    # The mean over ranks is then the mean over the samples of the step.
                    replica.backward(batch, weight=batch.share * session.size)
                    gradient = session.comm.all_gather(replica.gradient()).mean(dim=0)
                else:
                    replica.backward(batch, weight=float(batch.samples > 0))
                    sent = session.sent_gradient(replica.gradient(), batch.samples)
                    gradients = session.comm.all_gather(sent)
                    gradient = session.aggregate_gradients(gradients, batch.in_step, self.aggregation)
                replica.set_gradient(gradient)
                replica.step()
