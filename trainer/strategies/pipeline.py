"""Pipeline: the model is a chain of stages, one on each node, and a batch goes through in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.strategies.base import Cuts, MicroBatches, Strategy, stages_misfit
from trainer.strategies.schedules import Schedule, bubble, passes

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.models.base import Model
    from trainer.result import TrainResult
    from trainer.task import Task


class Pipeline(Strategy):
    """Pipeline parallelism with micro-batches (Huang et al. 2019, "GPipe"; Narayanan et al. 2019,
    "PipeDream"), flushed at the end of every step: the same mathematics as `serial`.

    Activations go from stage to stage, gradients come back, and both are sent while the stage computes on.
    A stage keeps the activations of the micro-batches that are between their forward and backward pass.
    Batch statistics, where a model has them, are a micro-batch's, and dropout draws for one at a time.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False

    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    cuts: Cuts = None

    def sees_images(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def pieces(self) -> int:
        return self.micro_batches

    def misfit(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return stages_misfit(model, self.cuts, ranks, self.micro_batches, batch_size)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.micro_batches)

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop
        from trainer.strategies.stage import Stage, cut

        loop = Loop(context, task, events)
        cuts = cut(task, loop.comm, context.size, self.cuts, self.micro_batches)
        stage = Stage(task, loop.clock, loop.comm, cuts, replica=0)
        loop.start(stage)
        for epoch in loop.epochs(stage):
            for batch in loop.batches(epoch, stage):
                pieces = stage.begin(batch, self.micro_batches)
                for each in passes(self.schedule, stage.number, stage.stages, pieces):
                    stage.go(each)
                stage.end()
                stage.step()
        return loop.result(stage)
