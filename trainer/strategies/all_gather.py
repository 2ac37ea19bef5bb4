"""All-gather: every node gets every node's gradient, and averages them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class AllGather(Strategy):
    """Send every gradient to every rank, which averages them itself (Thakur et al. 2005).

    The same mathematics as `all_reduce`. For n bytes of gradient and P nodes each node sends n(P-1) and
    adds up P gradients, where an all-reduce sends 2n(P-1)/P (Thakur et al. 2005, "Optimization of
    Collective Communication Operations in MPICH"): as many for two nodes, P/2 times as many for more.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                gradients = session.comm.all_gather(replica.gradient())
                replica.set_gradient(gradients.mean(dim=0))
                replica.step()
