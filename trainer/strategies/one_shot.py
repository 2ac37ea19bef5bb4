"""One-shot averaging: train apart, meet once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Init, Interval, Strategy, Weighting

if TYPE_CHECKING:
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter
    from trainer.core.result import TrainResult
    from trainer.training.task import Task


class OneShot(Strategy):
    """Train every node alone and average the weights once, at the end (Zinkevich et al. 2010).

    Every node trains alone on its own part; at the end the weights are averaged once. The theory is for
    convex losses. A neural network's loss is not: the average of independently initialised models is
    usually no better than chance, and from common initial weights it holds up while the nodes stay in
    one basin. `local_accuracy` in the result is that of the node's own model before averaging.

    Source: Zinkevich et al. 2010, "Parallelized Stochastic Gradient Descent", Alg. 3.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    evaluates_together: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs",)

    init: Init = "broadcast"
    weighting: Weighting = "equal"

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.training.session import Session

        session = Session(context, task, events)
        replica = session.replica(weights_of=context.rank)
        session.start(replica, self.init)
        for epoch in session.epochs(replica, model="own"):
            for batch in session.batches(epoch, replica):
                replica.backward(batch)
                replica.step()
        weight = session.weight(self.weighting, *range(1, task.spec.epochs + 1))
        replica.set_weights(session.mean_weights(replica, weight))
        return session.result(replica, averaged=True)
