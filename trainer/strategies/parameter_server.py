"""Parameter server: one node keeps the model, the others compute gradients for it. Synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from trainer.core.strategy import Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.replica import Replica
    from trainer.training.session import Session


class ParameterServer(Strategy):
    """Send gradients to a server that holds the model, in synchronous steps (Li et al. 2014).

    Rank 0 is the server. In each step the workers send it their gradients; it adds them up, each weighted
    by its share of the step's samples, steps its optimiser and sends the weights back. P workers do what
    P nodes of `all_reduce` do, and it takes one node more. For n bytes of gradient and P workers nP bytes
    go into the server and nP out of it.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", Alg. 1;
    synchronous steps as in Chen et al. 2016.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    min_nodes: ClassVar[int] = 2
    servers: ClassVar[int] = 1

    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            if session.is_server:
                self._serve(session, replica, epoch)
            else:
                self._work(session, replica, epoch)

    def _serve(self, session: Session, replica: Replica, epoch: int) -> None:
        import torch

        nothing = torch.zeros(replica.parameter_count, device=session.comm.device)  # a gradient of its own
        for _ in session.server_steps(session.synchronous_steps(epoch, self.uneven)):
            gradients = cast("Tensor", session.comm.gather(nothing, root=0))  # None on the workers alone
            with session.clock.phase("compute"):
                replica.set_gradient(gradients.sum(dim=0))
            replica.step()
            session.comm.broadcast(replica.flat_parameters(), root=0)

    def _work(self, session: Session, replica: Replica, epoch: int) -> None:
        weights = replica.flat_parameters()
        for batch in session.synchronous_batches(epoch, self.uneven):
            replica.backward(batch, weight=batch.share)
            session.comm.gather(replica.gradient(), root=0)
            session.comm.broadcast(weights, root=0)
            replica.set_flat_parameters(weights)
