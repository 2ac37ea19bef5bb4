"""Synchronous parameter server: rank 0 holds the model, workers compute gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from trainer.core.strategy import ALL_TRANSPORTS, Equal, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.replica import Replica
    from trainer.training.session import Session


class ParameterServer(Strategy):
    """Send gradients to a server that holds the model, in synchronous steps (Li et al. 2014).

    In each step rank 0, the server, receives the workers' gradients, adds them weighted by their share of
    the step's samples, takes an optimizer step and broadcasts the weights. P workers do what P ranks of
    `all_reduce` do, with one more rank. For n bytes of gradient the server receives nP bytes and sends nP.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", Alg. 1;
    synchronous steps as in Chen et al. 2016.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
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

        zeros = torch.zeros(
            replica.parameter_count, device=session.comm.device
        )  # the server's own gradient
        for _ in session.server_steps(range(session.synchronous_steps(epoch, self.uneven))):
            gradients = cast("Tensor", session.comm.gather(zeros, root=0))  # None only on workers
            with session.clock.phase("compute"):
                replica.set_gradient(gradients.sum(dim=0))
            replica.step()
            session.comm.broadcast(replica.flat_parameters(), root=0)

    def _work(self, session: Session, replica: Replica, epoch: int) -> None:
        parameters = replica.flat_parameters()
        for batch in session.synchronous_batches(epoch, self.uneven):
            # The sum of the weighted gradients is the mean over the samples of the step.
            replica.backward(batch, weight=batch.share)
            session.comm.gather(replica.gradient(), root=0)
            session.comm.broadcast(parameters, root=0)
            replica.set_flat_parameters(parameters)
