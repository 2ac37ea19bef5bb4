"""One-shot averaging: train apart, meet once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task


class OneShot(Strategy):
    """Parallel SGD after Zinkevich et al. 2010 ("Parallelized Stochastic Gradient Descent", Alg. 3).

    Every node trains alone on its own part; at the end the weights are averaged once. The theory is for
    convex losses. A neural network's loss is not: the average of independently initialised models is
    usually no better than chance, and from common initial weights it holds up while the nodes stay in
    one basin. `own_accuracy` in the result is that of the node's own model before averaging.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")

    init: Literal["broadcast", "independent"] = Field(
        "broadcast", description="nodes start from rank 0's weights, or each from its own"
    )

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica(weights_of=context.rank)
        loop.start(replica)
        if self.init == "broadcast":
            weights = replica.weights()
            loop.comm.broadcast(weights, root=0)
            replica.set_weights(weights)
        for epoch in loop.epochs(replica, own_model=True):
            for batch in loop.batches(epoch, replica):
                replica.backward(batch)
                replica.step()
        weights = replica.weights()
        loop.comm.all_reduce(weights, "mean")
        replica.set_weights(weights)
        return loop.result(replica, averaged=True)
