"""Parameter server: one node keeps the model, the others compute gradients for it. Synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from trainer.core.strategy import Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter
    from trainer.core.result import TrainResult
    from trainer.training.replica import Replica
    from trainer.training.session import Session
    from trainer.training.task import Task


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

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.training.session import Session

        session = Session(context, task, events)
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs(replica):
            if session.serves:
                self._serve(session, replica, epoch)
            else:
                self._work(session, replica, epoch)
        return session.result(replica)

    def _serve(self, session: Session, replica: Replica, epoch: int) -> None:
        import torch

        nothing = torch.zeros(replica.parameters, device=session.comm.device)  # a gradient of its own
        for _ in session.served(session.steps_together(epoch, self.uneven)):
            gradients = cast("Tensor", session.comm.gather(nothing, root=0))  # None on the workers alone
            with session.clock.phase("compute"):
                replica.set_gradient(gradients.sum(dim=0))
            replica.step()
            session.comm.broadcast(replica.trained(), root=0)

    def _work(self, session: Session, replica: Replica, epoch: int) -> None:
        weights = replica.trained()
        for batch in session.batches_in_step(epoch, replica, self.uneven):
            replica.backward(batch, weight=batch.share)
            session.comm.gather(replica.gradient(), root=0)
            session.comm.broadcast(weights, root=0)
            replica.set_trained(weights)
