"""Pipeline parallelism: the model is a chain of stages, one per node, and micro-batches flow through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.core.strategy import (
    CPU_TRANSPORTS,
    Equal,
    Interval,
    MicroBatches,
    Recompute,
    SplitPoints,
    Strategy,
)
from trainer.parallel.schedules import (
    Chunks,
    Schedule,
    bubble,
    chunks_of,
    parts_of_work,
    passes,
    pipeline_validation_error,
    recompute_error,
)

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.parallel.pipeline_stage import PipelineStage
    from trainer.training.session import Session


class Pipeline(Strategy):
    """Pipeline micro-batches through stages: GPipe, 1F1B, interleaved 1F1B, zero-bubble ZB-H1.

    Each step flushes the pipeline at its end, so training is mathematically equal to `serial`.

    A stage sends activations to the next stage and gradients to the previous one, while it computes the
    next micro-batch. It stores the activations of a micro-batch from its forward to its backward pass.
    BatchNorm statistics are those of a micro-batch, and dropout draws a mask per micro-batch.

    Source: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream"; Narayanan et al. 2021,
    "Megatron-LM", Sec. 2.2 (interleaved); Qi et al. 2023, "Zero Bubble Pipeline Parallelism", Sec. 2.1
    (zero_bubble).
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    equals: ClassVar[Equal | None] = "serial"
    partitions_model: ClassVar[bool] = True
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = (
        *({"micro_batches": count} for count in (4, 8, 16)),
        {"schedule": "interleaved", "micro_batches": 8},
        {"schedule": "zero_bubble", "micro_batches": 8},
    )

    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    chunks: Chunks = None
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return pipeline_validation_error(
            model, self.split_points, ranks, self.micro_batches, batch_size, self.schedule, self.chunks
        )

    def recompute_error(self, recompute: Recompute) -> str | None:
        return recompute_error(self.schedule)

    @property
    def parts_of_work(self) -> int:
        return parts_of_work(self.schedule, self.micro_batches, self.chunks)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.parts_of_work)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import PipelineStage, choose_split_points

        task, comm = session.task, session.comm
        chunks = chunks_of(self.schedule, self.chunks)
        stages = comm.size * chunks
        given = session.saved("split_points") or self.split_points  # else they could differ when it resumes
        split_points = choose_split_points(task, comm, stages, given, self.micro_batches)
        stage = PipelineStage(
            task,
            session.clock,
            comm,
            split_points,
            replica=0,
            splits_backward=self.schedule == "zero_bubble",
        )
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                micro_batches = stage.split_batch(batch, self.micro_batches)
                forward_backward(stage, self.schedule, micro_batches)
                stage.step()


def forward_backward(stage: PipelineStage, schedule: Schedule, micro_batches: int) -> None:
    """Run the forward and backward passes of one step on this stage, and flush the pipeline."""
    for each in passes(schedule, stage.stage_index, stage.num_stages, micro_batches, stage.chunks):
        match each.kind:
            case "forward":
                x = stage.receive_activations(each)  # samples on the first stage
                y = stage.forward_micro_batch(each, x)  # the last stage computes the loss
                stage.send_activations(y)
            case "backward" | "input":
                dy = stage.receive_gradient(each)  # the last stage starts from its loss
                dx = stage.backward_micro_batch(each, dy)
                stage.send_gradient(dx)
            case "weight":
                stage.weights_of_micro_batch(each)
    stage.finish_batch()
