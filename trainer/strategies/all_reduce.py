"""All-reduce: average the gradients in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.compression import COMPRESSIONS, Compression
from trainer.strategies.base import Interval, Strategy, Uneven

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task


class AllReduce(Strategy):
    """Synchronous data-parallel SGD (Chen et al. 2016, "Revisiting Distributed Synchronous SGD", Sec. 2).

    In each step the nodes' gradients become their mean over all samples of the step, so P nodes with
    batch B do what one node does with batch P·B. All replicas hold the same weights at all times.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    in_step: ClassVar[bool] = True
    resumes: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    compression: Annotated[Compression, COMPRESSIONS] = Field(
        "none", validate_default=True, description="how gradients are made smaller before they are sent"
    )

    @property
    def unsaved(self) -> str | None:
        return self.compression.unsaved

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop

        loop = Loop(context, task, events)
        replica = loop.replica()
        compressor = self.compression.build(loop.comm, replica.shapes, task.streams)
        loop.start(replica)
        for epoch in loop.epochs(replica):
            for batch in loop.batches_in_step(epoch, replica, self.uneven):
                replica.backward(batch, weight=batch.share * context.size)
                gradient = replica.gradient()
                compressor.mean(gradient)
                replica.set_gradient(gradient)
                replica.step()
        return loop.result(replica)
