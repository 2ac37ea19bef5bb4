"""Local SGD: train apart for some steps, average the weights, go on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.strategies.base import Init, Interval, OptimizerState, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.strategies.loop import Loop
    from trainer.strategies.replica import Replica
    from trainer.task import Task


class LocalSGD(Strategy):
    """Local SGD after Stich 2019 ("Local SGD Converges Fast and Communicates Little", Alg. 1).

    Every node takes `local_steps` (H) steps on its own samples, then the nodes' weights become their
    average. With `weighting: size` it is FederatedAveraging of all clients (McMahan et al. 2017, Alg. 1).
    H=1 with plain SGD is `all_reduce`; without averages before the end (H null) it is `one_shot`. What is
    evaluated after an epoch is the average of the replicas.

    optimizer_state: at an average every node may keep its own momentum (as in most code), take the
    average of all (Yu et al. 2019), or start without.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    resumes: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int | None = Field(
        10, ge=1, description="H: steps between two averages; null: average at the end alone"
    )
    weighting: Weighting = "equal"
    optimizer_state: OptimizerState = "keep"
    init: Init = "broadcast"
    uneven: Uneven = "join"

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica(weights_of=context.rank)
        loop.start(replica, self.init)
        # Since the last average; a run that goes on from a snapshot has taken some already.
        steps = loop.steps_taken % self.local_steps if self.local_steps else loop.steps_taken
        for epoch in loop.epochs(replica, model="mean", weighting=self.weighting):
            for batch in loop.batches_in_step(epoch, replica, self.uneven):
                if batch.share:
                    replica.backward(batch)
                    replica.step()
                steps += 1
                if steps == self.local_steps:
                    self._average(loop, replica, epoch)
                    steps = 0
        if steps:
            self._average(loop, replica, epoch)
        return loop.result(replica)

    def _average(self, loop: Loop, replica: Replica, epoch: int) -> None:
        weight = loop.weight(self.weighting, epoch)
        replica.set_weights(loop.mean_weights(replica, weight))
        if self.optimizer_state == "reset":
            replica.reset_optimizer()
        elif self.optimizer_state == "average":
            state = replica.optimizer_state().mul_(weight)
            loop.comm.all_reduce(state, "mean")
            replica.set_optimizer_state(state)
