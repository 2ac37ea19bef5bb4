"""Pipeline parallelism by torch: the stages of `pipeline`, driven by torch.distributed.pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Equal, MicroBatches, SplitPoints, Strategy
from trainer.parallel.schedules import FlushSchedule, bubble, pipeline_validation_error

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class PipelineTorch(Strategy):
    """Run the schedules of `pipeline` with torch.distributed.pipelining.

    torch needs micro-batches of equal size. If `micro_batches` does not divide a batch, the batch is split
    into the largest smaller number that does; with fewer micro-batches than stages, the schedule is GPipe.

    Bytes are counted where torch creates its sends. torch does not show when it waits, so waiting for other
    stages is booked as communication. Older versions deadlock over gloo (pytorch#132644), the pinned one
    does not.

    Source: torch's ScheduleGPipe and Schedule1F1B (Huang et al. 2019; Narayanan et al. 2019). The
    mathematics is that of `pipeline` and `serial`.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo",)
    autocasts: ClassVar[bool] = False
    virtual: ClassVar[bool] = False
    equivalent: ClassVar[str | None] = "pipeline"
    equals: ClassVar[Equal | None] = "serial"
    partitions_model: ClassVar[bool] = True
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    attributes_stragglers: ClassVar[bool] = False

    schedule: FlushSchedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if reason := pipeline_validation_error(
            model, self.split_points, ranks, self.micro_batches, batch_size
        ):
            return reason
        if self.schedule == "1f1b" and self.micro_batches < ranks:
            counts = f"{ranks} to {batch_size} micro-batches, or " if ranks <= batch_size else ""
            return (
                f"torch's 1f1b needs at least as many micro-batches as stages ({ranks}), not "
                f"{self.micro_batches}; allowed: {counts}schedule gpipe"
            )
        return None

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.micro_batches)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import choose_split_points
        from trainer.parallel.torch_pipeline_stage import TorchPipelineStage

        task, comm = session.task, session.comm
        split_points = choose_split_points(task, comm, comm.size, self.split_points, self.micro_batches)
        stage = TorchPipelineStage(task, comm, split_points, self.schedule, self.micro_batches)
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                stage.forward_backward(batch)
                stage.step()
