"""Serial: one node, the reference that every speedup is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.strategies.base import Interval, Strategy

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task


class Serial(Strategy):
    """Mini-batch training on one node that holds the whole training set."""

    transports: ClassVar[tuple[str, ...]] = ("memory", "nccl")
    max_nodes: ClassVar[int | None] = 1
    uses_partition: ClassVar[bool] = False
    resumes: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica()
        loop.start(replica)
        for epoch in loop.epochs(replica):
            for batch in loop.batches(epoch, replica):
                replica.backward(batch)
                replica.step()
        return loop.result(replica)
