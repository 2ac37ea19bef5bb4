"""Pipeline: the model is a chain of stages, one on each node, and a batch goes through in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import MicroBatches, SplitPoints, Strategy
from trainer.parallel.schedules import Schedule, bubble, passes, pipeline_validation_error

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class Pipeline(Strategy):
    """Pipeline micro-batches through stages: GPipe, 1F1B (Huang et al. 2019; Narayanan et al. 2019).

    The pipeline is flushed at the end of every step, so the mathematics is that of `serial`.

    Activations go from stage to stage, gradients come back, and both are sent while the stage computes on.
    A stage keeps the activations of the micro-batches that are between their forward and backward pass.
    Batch statistics, where a model has them, are a micro-batch's, and dropout draws for one at a time.

    Source: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream".
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")
    partitions_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False

    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None

    def sees_images(self, rank: int, ranks: int) -> bool:
        return rank == 0

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return pipeline_validation_error(model, self.split_points, ranks, self.micro_batches, batch_size)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks, self.micro_batches)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import Stage, cut

        split_points = cut(session.task, session.comm, session.size, self.split_points, self.micro_batches)
        stage = Stage(session.task, session.clock, session.comm, split_points, replica=0)
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                pieces = stage.begin(batch, self.micro_batches)
                for each in passes(self.schedule, stage.number, stage.stages, pieces):
                    stage.go(each)
                stage.end()
                stage.step()
