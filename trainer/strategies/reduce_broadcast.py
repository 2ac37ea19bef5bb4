"""Reduce and broadcast: rank 0 averages the gradients; the naive form of all-reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import ALL_TRANSPORTS, Equal, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class ReduceBroadcast(Strategy):
    """Average the gradients on rank 0 and broadcast the mean (Chan et al. 2007).

    The same mathematics as `all_reduce`. For n bytes of gradient and P ranks, rank 0 receives n(P−1) bytes
    and sends n(P−1); an all-reduce spreads 2n(P−1)/P evenly over all links.

    Source: Chan et al. 2007, "Collective Communication".
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float:
        return gradient_bytes * (1 if rank else ranks - 1)

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)
                gradient = replica.gradient()
                gradients = session.comm.gather(gradient, root=0)
                if gradients is not None:  # on rank 0
                    gradient = gradients.mean(dim=0)
                session.comm.broadcast(gradient, root=0)
                replica.set_gradient(gradient)
                replica.step()
