"""Hybrid parallelism: several replicas of a pipeline, each on its own part of the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.core.strategy import (
    CPU_TRANSPORTS,
    Equal,
    Interval,
    MicroBatches,
    Recompute,
    SplitPoints,
    Strategy,
    Uneven,
)
from trainer.parallel.schedules import (
    Chunks,
    Schedule,
    bubble,
    chunks_of,
    parts_of_work,
    pipeline_validation_error,
    recompute_error,
)
from trainer.strategies.pipeline import forward_backward

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session

Grid = Annotated[list[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=2, max_length=2)]


class Hybrid(Strategy):
    """Combine data and pipeline parallelism on a grid of nodes (Narayanan et al. 2021).

    shape [D, S]: D replicas of the model, each a pipeline of S ranks. Rank d·S + s holds stage s of
    replica d, and with schedule interleaved also stages s + S, s + 2·S, …. In each step the D ranks of a
    stage all-reduce their gradients to the mean over the samples of the step. [D, 1] equals `all_reduce`,
    [1, S] equals `pipeline`.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", Sec. 2.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    min_nodes: ClassVar[int] = 2
    partitions_model: ClassVar[bool] = True
    cuts_model: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    shape: Grid | None = Field(
        None,
        description="[replicas, stages of each]; null: two stages, and as many replicas as the nodes allow",
    )
    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    chunks: Chunks = None
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None
    uneven: Uneven = "join"

    def grid(self, ranks: int) -> tuple[int, int]:
        """Return the number of replicas and the number of stages of each."""
        replicas, stages = self.shape or (max(1, ranks // 2), 2)
        return replicas, stages

    def replicas(self, ranks: int) -> int:
        return self.grid(ranks)[0]

    def replica_of(self, rank: int, ranks: int) -> int:
        return rank // self.grid(ranks)[1]

    def reports_samples(self, rank: int, ranks: int) -> bool:
        return rank % self.grid(ranks)[1] == 0

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return self.reports_samples(rank, ranks)

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        replicas, stages = self.grid(ranks)
        if replicas * stages != ranks:
            grids = [[ranks // each, each] for each in range(1, ranks + 1) if ranks % each == 0]
            chunks = chunks_of(self.schedule, self.chunks)
            allowed = ", ".join(str(grid) for grid in grids if grid[1] * chunks <= len(model.names))
            return f"shape [{replicas}, {stages}] needs {replicas * stages} ranks; allowed: {allowed}"
        return pipeline_validation_error(
            model, self.split_points, stages, self.micro_batches, batch_size, self.schedule, self.chunks
        )

    def recompute_error(self, recompute: Recompute) -> str | None:
        return recompute_error(self.schedule)

    @property
    def parts_of_work(self) -> int:
        return parts_of_work(self.schedule, self.micro_batches, self.chunks)

    def bubble(self, ranks: int) -> float | None:
        return bubble(self.grid(ranks)[1], self.parts_of_work)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import PipelineStage, choose_split_points

        task = session.task
        replicas, stages = self.grid(session.size)
        chunks = chunks_of(self.schedule, self.chunks)
        given = session.saved("split_points") or self.split_points  # else they could differ when it resumes
        split_points = choose_split_points(task, session.comm, stages * chunks, given, self.micro_batches)
        pipeline_group = session.comm.split(colour=session.rank // stages)
        session.peers = data_group = session.comm.split(colour=session.rank % stages)
        stage = PipelineStage(
            task,
            session.clock,
            pipeline_group,
            split_points,
            replica=data_group.rank,
            splits_backward=self.schedule == "zero_bubble",
        )
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # With this weight, the mean over D replicas is the mean over the samples of the step.
                loss_weight = batch.share * replicas
                micro_batches = stage.split_batch(batch, self.micro_batches, loss_weight)
                forward_backward(stage, self.schedule, micro_batches)
                gradient = stage.gradient()
                data_group.all_reduce(gradient, "mean")
                stage.set_gradient(gradient)
                stage.step()
