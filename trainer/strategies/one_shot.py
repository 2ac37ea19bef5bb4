"""One-shot averaging: train apart, meet once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.strategies.base import Init, Interval, Strategy, Weighting

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
    evaluates_together: ClassVar[bool] = False
    resumes: ClassVar[tuple[Interval, ...]] = ("epochs",)

    init: Init = "broadcast"
    weighting: Weighting = "equal"

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica(weights_of=context.rank)
        loop.start(replica, self.init)
        for epoch in loop.epochs(replica, model="own"):
            for batch in loop.batches(epoch, replica):
                replica.backward(batch)
                replica.step()
        weight = loop.weight(self.weighting, *range(1, task.spec.epochs + 1))
        replica.set_weights(loop.mean_weights(replica, weight))
        return loop.result(replica, averaged=True)
