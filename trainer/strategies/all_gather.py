"""All-gather: every rank receives all gradients and averages them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import ALL_TRANSPORTS, Equal, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class AllGather(Strategy):
    """Send every gradient to every rank, which averages them itself (Thakur et al. 2005).

    The same mathematics as `all_reduce`. For n bytes of gradient and P ranks, each rank sends n(P−1) bytes
    and adds P gradients; an all-reduce sends 2n(P−1)/P: the same for two ranks, 2/P of it for more.

    Source: Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH".
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float:
        return gradient_bytes * (ranks - 1)

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)
                gradients = session.comm.all_gather(replica.gradient())
                replica.set_gradient(gradients.mean(dim=0))
                replica.step()
