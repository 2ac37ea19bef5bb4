"""Pipeline by torch: the same stages and schedules, driven by torch.distributed.pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.strategies.base import Cuts, MicroBatches, Strategy, stages_misfit
from trainer.strategies.schedules import Schedule, bubble

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.models.base import Model
    from trainer.result import TrainResult
    from trainer.task import Task


class PipelineTorch(Strategy):
    """torch.distributed.pipelining's ScheduleGPipe and Schedule1F1B (Huang et al. 2019; Narayanan et al.
    2019): the mathematics of `pipeline`, and of `serial`.

    The library wants micro-batches of one size: a batch that `micro_batches` does not divide goes through
    in the largest number of pieces below it that does, and in GPipe's order if those are fewer than stages.
    It used to hang over gloo, where it waited for one of several sends alone (pytorch#132644); in the
    version that is pinned here it does not. What it sends is counted where it hands it over. It does not
    say when it waits: waiting for other stages is booked as communication.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo",)
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    tells_waits: ClassVar[bool] = False

    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    cuts: Cuts = None

    def sees_images(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def pieces(self) -> int:
        return self.micro_batches

    def misfit(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if reason := stages_misfit(model, self.cuts, ranks, self.micro_batches, batch_size):
            return reason
        if self.schedule == "1f1b" and self.micro_batches < ranks:
            more = f"{ranks} to {batch_size} micro-batches, or " if ranks <= batch_size else ""
            return (
                f"torch's 1f1b takes as many micro-batches as stages or more, not {self.micro_batches}; "
                f"allowed: {more}schedule gpipe"
            )
        return None

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.micro_batches)

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.library_stage import LibraryStage
        from trainer.strategies.loop import Loop
        from trainer.strategies.stage import cut

        loop = Loop(context, task, events)
        cuts = cut(task, loop.comm, context.size, self.cuts, self.micro_batches)
        stage = LibraryStage(task, loop.comm, cuts, self.schedule, self.micro_batches)
        loop.start(stage)
        for epoch in loop.epochs(stage):
            for batch in loop.batches(epoch, stage):
                stage.pass_through(batch)
                stage.step()
        return loop.result(stage)
