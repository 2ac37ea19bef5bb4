"""Reduce and broadcast: one node averages for all, the naive twin of all-reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.training.session import Session


class ReduceBroadcast(Strategy):
    """Average the gradients on rank 0 and broadcast the mean (Chan et al. 2007).

    The same mathematics as `all_reduce`: all nodes send their gradients to rank 0, which sends the mean
    back. For n bytes of gradient and P nodes, n(P-1) bytes go into rank 0 and n(P-1) out of it, while an
    all-reduce spreads its 2n(P-1)/P evenly over all links (Chan et al. 2007, "Collective Communication").
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
                gradient = replica.gradient()
                gradients = session.comm.gather(gradient, root=0)
                if gradients is not None:
                    gradient = gradients.mean(dim=0)
                session.comm.broadcast(gradient, root=0)
                replica.set_gradient(gradient)
                replica.step()
