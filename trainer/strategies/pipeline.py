"""Pipeline parallelism: the model is a chain of stages, one per node, and micro-batches flow through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Equal, MicroBatches, SplitPoints, Strategy
from trainer.parallel.schedules import Schedule, bubble, passes, pipeline_validation_error

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.parallel.pipeline_stage import PipelineStage
    from trainer.training.session import Session


class Pipeline(Strategy):
    """Pipeline micro-batches through stages: GPipe, 1F1B (Huang et al. 2019; Narayanan et al. 2019).

    The pipeline is flushed at the end of every step, so the mathematics is that of `serial`.

    Stages send activations forward and gradients backward, while they compute the next micro-batch. A stage
    stores the activations of the micro-batches between their forward and backward pass. BatchNorm
    statistics are those of a micro-batch, and dropout draws a mask per micro-batch.

    Source: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream".
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    equals: ClassVar[Equal | None] = "serial"
    partitions_model: ClassVar[bool] = True
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False

    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return pipeline_validation_error(model, self.split_points, ranks, self.micro_batches, batch_size)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.micro_batches)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import PipelineStage, choose_split_points

        task, comm = session.task, session.comm
        split_points = choose_split_points(task, comm, comm.size, self.split_points, self.micro_batches)
        stage = PipelineStage(task, session.clock, comm, split_points, replica=0)
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                micro_batches = stage.split_batch(batch, self.micro_batches)
                forward_backward(stage, self.schedule, micro_batches)
                stage.step()


def forward_backward(stage: PipelineStage, schedule: Schedule, micro_batches: int) -> None:
    """Run the forward and backward passes of one step on this stage, and flush the pipeline."""
    for each in passes(schedule, stage.stage_index, stage.num_stages, micro_batches):
        if each.forward:
            x = stage.receive_activations(each.micro_batch)  # images on the first stage
            y = stage.forward_micro_batch(each.micro_batch, x)  # the last stage computes the loss
            stage.send_activations(y)
        else:
            dy = stage.receive_gradient(each.micro_batch)  # the last stage starts from its loss
            dx = stage.backward_micro_batch(each.micro_batch, dy)
            stage.send_gradient(dx)
    stage.finish_batch()
