"""Hybrid: several pipelines side by side, each on its part of the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.core.strategy import MicroBatches, SplitPoints, Strategy, Uneven
from trainer.parallel.schedules import Schedule, bubble, passes, pipeline_validation_error

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session

Grid = Annotated[list[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=2, max_length=2)]


class Hybrid(Strategy):
    """Combine data and pipeline parallelism on a grid of nodes (Narayanan et al. 2021).

    shape [D, S]: D copies of the model, each a pipeline of S stages; rank d·S + s is stage s of copy d. In
    each step the D ranks of a stage replace their gradients by the mean over all samples of the step, as
    `all_reduce` does with the whole model's: [D, 1] is `all_reduce`, [1, S] is `pipeline`.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", Sec. 2.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")
    min_nodes: ClassVar[int] = 2
    partitions_model: ClassVar[bool] = True

    shape: Grid | None = Field(
        None,
        description="copies of the model, and stages of each; null: two stages, and as many copies as "
        "there are nodes for",
    )
    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None
    uneven: Uneven = "join"

    def grid(self, ranks: int) -> tuple[int, int]:
        """Copies of the model, and stages of each."""
        copies, stages = self.shape or (max(1, ranks // 2), 2)
        return copies, stages

    def replicas(self, ranks: int) -> int:
        return self.grid(ranks)[0]

    def replica_of(self, rank: int, ranks: int) -> int:
        return rank // self.grid(ranks)[1]

    def reports_samples(self, rank: int, ranks: int) -> bool:
        return rank % self.grid(ranks)[1] == 0

    def sees_images(self, rank: int, ranks: int) -> bool:
        return self.reports_samples(rank, ranks)

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        copies, stages = self.grid(ranks)
        if copies * stages != ranks:
            grids = [[ranks // each, each] for each in range(1, ranks + 1) if ranks % each == 0]
            allowed = ", ".join(str(grid) for grid in grids if grid[1] <= len(model.names))
            return f"shape [{copies}, {stages}] takes {copies * stages} ranks; allowed: {allowed}"
        return pipeline_validation_error(model, self.split_points, stages, self.micro_batches, batch_size)

    def bubble(self, ranks: int) -> float | None:
        return bubble(self.grid(ranks)[1], self.micro_batches)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import Stage, cut

        copies, stages = self.grid(session.size)
        split_points = cut(session.task, session.comm, stages, self.split_points, self.micro_batches)
        chain = session.comm.split(colour=session.rank // stages)
        session.peers = peers = session.comm.split(colour=session.rank % stages)
        stage = Stage(session.task, session.clock, chain, split_points, replica=peers.rank)
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                pieces = stage.begin(batch, self.micro_batches, weight=batch.share * copies)
                for each in passes(self.schedule, stage.number, stages, pieces):
                    stage.go(each)
                stage.end()
                gradient = stage.gradient()
                peers.all_reduce(gradient, "mean")
                stage.set_gradient(gradient)
                stage.step()
