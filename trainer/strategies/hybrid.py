"""Hybrid: several pipelines side by side, each on its part of the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.strategies.base import Cuts, MicroBatches, Strategy, Uneven, stages_misfit
from trainer.strategies.schedules import Schedule, bubble, passes

if TYPE_CHECKING:
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.models.base import Model
    from trainer.result import TrainResult
    from trainer.task import Task

Grid = Annotated[list[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=2, max_length=2)]


class Hybrid(Strategy):
    """Data and pipeline parallelism on a grid of nodes (Narayanan et al. 2021, "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM", Sec. 2).

    shape [D, S]: D copies of the model, each a pipeline of S stages; rank d·S + s is stage s of copy d. In
    each step the D ranks of a stage replace their gradients by the mean over all samples of the step, as
    `all_reduce` does with the whole model's: [D, 1] is `all_reduce`, [1, S] is `pipeline`.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")
    min_nodes: ClassVar[int] = 2
    cuts_model: ClassVar[bool] = True

    shape: Grid | None = Field(
        None,
        description="copies of the model, and stages of each; null: two stages, and as many copies as "
        "there are nodes for",
    )
    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    micro_batches: MicroBatches = 4
    cuts: Cuts = None
    uneven: Uneven = "join"

    def grid(self, ranks: int) -> tuple[int, int]:
        """Copies of the model, and stages of each."""
        copies, stages = self.shape or (max(1, ranks // 2), 2)
        return copies, stages

    def replicas(self, ranks: int) -> int:
        return self.grid(ranks)[0]

    def replica_of(self, rank: int, ranks: int) -> int:
        return rank // self.grid(ranks)[1]

    def leads(self, rank: int, ranks: int) -> bool:
        return rank % self.grid(ranks)[1] == 0

    def sees_images(self, rank: int, ranks: int) -> bool:
        return self.leads(rank, ranks)

    @property
    def pieces(self) -> int:
        return self.micro_batches

    def misfit(self, model: Model, ranks: int, batch_size: int) -> str | None:
        copies, stages = self.grid(ranks)
        if copies * stages != ranks:
            grids = [[ranks // each, each] for each in range(1, ranks + 1) if ranks % each == 0]
            allowed = ", ".join(str(grid) for grid in grids if grid[1] <= len(model.names))
            return f"shape [{copies}, {stages}] takes {copies * stages} ranks; allowed: {allowed}"
        return stages_misfit(model, self.cuts, stages, self.micro_batches, batch_size)

    def bubble(self, ranks: int) -> float | None:
        return bubble(self.grid(ranks)[1], self.micro_batches)

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop
        from trainer.strategies.stage import Stage, cut

        copies, stages = self.grid(context.size)
        loop = Loop(context, task, events)
        cuts = cut(task, loop.comm, stages, self.cuts, self.micro_batches)
        chain = loop.comm.split(colour=context.rank // stages)
        loop.peers = peers = loop.comm.split(colour=context.rank % stages)
        stage = Stage(task, loop.clock, chain, cuts, replica=peers.rank)
        loop.start(stage)
        for epoch in loop.epochs(stage):
            for batch in loop.batches_in_step(epoch, stage, self.uneven):
                pieces = stage.begin(batch, self.micro_batches, weight=batch.share * copies)
                for each in passes(self.schedule, stage.number, stages, pieces):
                    stage.go(each)
                stage.end()
                gradient = stage.gradient()
                peers.all_reduce(gradient, "mean")
                stage.set_gradient(gradient)
                stage.step()
        return loop.result(stage)
