"""Parameter server: one node keeps the model, the others compute gradients for it. Synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from trainer.strategies.base import Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.strategies.loop import Loop
    from trainer.strategies.replica import Replica
    from trainer.task import Task


class ParameterServer(Strategy):
    """The parameter server of Li et al. 2014 ("Scaling Distributed Machine Learning with the Parameter
    Server", OSDI, Alg. 1), waiting for all workers in every step as in Chen et al. 2016.

    Rank 0 is the server. In each step the workers send it their gradients; it adds them up, each weighted
    by its share of the step's samples, steps its optimiser and sends the weights back. P workers do what
    P nodes of `all_reduce` do, and it takes one node more. For n bytes of gradient and P workers nP bytes
    go into the server and nP out of it.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    min_nodes: ClassVar[int] = 2
    servers: ClassVar[int] = 1

    uneven: Uneven = "join"

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica()
        loop.start(replica)
        for epoch in loop.epochs(replica):
            if loop.serves:
                self._serve(loop, replica, epoch)
            else:
                self._work(loop, replica, epoch)
        return loop.result(replica)

    def _serve(self, loop: Loop, replica: Replica, epoch: int) -> None:
        import torch

        nothing = torch.zeros(replica.parameters, device=loop.comm.device)  # a gradient of its own
        for _ in loop.served(loop.steps_together(epoch, self.uneven)):
            gradients = cast("Tensor", loop.comm.gather(nothing, root=0))  # None on the workers alone
            with loop.clock.phase("compute"):
                replica.set_gradient(gradients.sum(dim=0))
            replica.step()
            loop.comm.broadcast(replica.trained(), root=0)

    def _work(self, loop: Loop, replica: Replica, epoch: int) -> None:
        weights = replica.trained()
        for batch in loop.batches_in_step(epoch, replica, self.uneven):
            replica.backward(batch, weight=batch.share)
            loop.comm.gather(replica.gradient(), root=0)
            loop.comm.broadcast(weights, root=0)
            replica.set_trained(weights)
