"""Hybrid parallelism: several replicas of a pipeline, whose stages can be divided over several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from trainer.core.registry import shortened
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
from trainer.parallel.mesh import Mesh, meshes
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
from trainer.strategies.tensor_parallel import (
    column_parallel,
    row_parallel,
    sharded_recompute_error,
    sharding_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.models.base import Model, ParallelPair
    from trainer.spec.run_spec import RunSpec
    from trainer.training.session import Session


class Hybrid(Strategy):
    """Combine data, pipeline and tensor parallelism on a mesh of ranks (Narayanan et al. 2021).

    mesh {data: D, pipeline: S, tensor: T}: D replicas of the model, each a pipeline of S stages, each of
    which T ranks hold together. A degree that is left out is 1. Rank (d·S + s)·T + t holds shard t of stage
    s of replica d, and with schedule interleaved also shard t of stages s + S, s + 2·S, …. Each rank is in
    three groups, and in each of them only one coordinate differs:

    - tensor: T ranks. They exchange activations and their gradients in the layers, as `tensor_parallel`.
    - pipeline: S ranks. They send activations to the next stage and gradients back, as `pipeline`.
    - data: D ranks. In each step they all-reduce their gradients to the mean over the samples of the step.

    {data: D} equals `all_reduce`, {pipeline: S} equals `pipeline`, {tensor: T} equals `tensor_parallel`. No
    pair of tensor-parallel layers spans two stages. Activations between stages are whole, and every rank of
    a tensor group sends them: T times the bytes of `pipeline`.

    Traffic of a rank per step and B samples of its replica, without recomputation, with a and g the sizes
    of what a sample passes to the next stage and from the previous one, n the parameters of the rank, and
    in and out as in `tensor_parallel`, in the pairs of its stage: 4B·(a + g) + 4n·2(D − 1)/D + Σ 4B·(in +
    out)·2(T − 1)/T bytes.

    Sources: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", Sec. 2; Shoeybi et al. 2019, "Megatron-LM", Sec. 3. Megatron-LM's code puts the stages
    outermost in the order of ranks. Here it is the replicas.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    equals: ClassVar[Equal | None] = "all_reduce"
    min_nodes: ClassVar[int] = 2
    partitions_model: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    mesh: Mesh | None = Field(
        None,
        description="ranks in each dimension, as {data: 2, pipeline: 2, tensor: 2}; 1 where left out; "
        "null: two stages, and as many replicas as the nodes allow",
    )
    schedule: Schedule = Field("1f1b", description="order of forward and backward passes in a stage")
    chunks: Chunks = None
    micro_batches: MicroBatches = 4
    split_points: SplitPoints = None
    uneven: Uneven = "join"

    @model_validator(mode="before")
    @classmethod
    def _read_shape(cls, values: Any) -> Any:
        """Read `shape: [D, S]` of sweep files of version 1.0 as `mesh: {data: D, pipeline: S}`."""
        match values:
            case {"shape": [data, pipeline], **rest} if rest.get("mesh") is None:
                return {**rest, "mesh": {"data": data, "pipeline": pipeline}}
            case {"shape": None, **rest}:
                return rest
        return values

    @classmethod
    def layouts_on(cls, ranks: int) -> Sequence[dict[str, Any]]:
        """All meshes of two or three dimensions; those of one have strategies of their own."""
        return [
            {"mesh": mesh.model_dump(exclude_defaults=True), "micro_batches": micro_batches}
            for mesh in meshes(ranks)
            if sum(mesh.degree(dimension) > 1 for dimension in mesh.dimensions) > 1
            for micro_batches in ((4, 8) if mesh.pipeline > 1 else (1,))
        ]

    def mesh_of(self, ranks: int) -> Mesh:
        """Return the given mesh, or the default one of so many ranks."""
        return self.mesh or Mesh(data=max(1, ranks // 2), pipeline=2)

    @property
    def shards_layers(self) -> bool:
        """Whether ranks share the layers of a stage."""
        return self.mesh is not None and self.mesh.tensor > 1

    # What a strategy declares depends on the mesh here.

    @property
    def cuts_model(self) -> bool:  # type: ignore[override]
        return self.mesh is None or self.mesh.pipeline > 1

    @property
    def autocasts(self) -> bool:  # type: ignore[override]
        return not self.shards_layers

    @property
    def full_gradients(self) -> bool:  # type: ignore[override]
        return not self.shards_layers

    @property
    def needs_thread(self) -> bool:  # type: ignore[override]
        return self.shards_layers

    def replicas(self, ranks: int) -> int:
        return self.mesh_of(ranks).data

    def replica_of(self, rank: int, ranks: int) -> int:
        return self.mesh_of(ranks).position(rank).data

    def reports_samples(self, rank: int, ranks: int) -> bool:
        _, pipeline, tensor = self.mesh_of(ranks).position(rank)
        return pipeline == tensor == 0

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return self.mesh_of(ranks).position(rank).pipeline == 0

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        mesh = self.mesh_of(ranks)
        if mesh.size == ranks:
            return self._mesh_error(mesh, model, batch_size)
        allowed = [
            str(other)
            for other in meshes(ranks)
            if not self._mesh_error(other, model, batch_size)
            and not (other.pipeline > 1 and model.indivisible)
        ]
        return f"mesh {mesh} has {mesh.size} ranks; allowed: {shortened(allowed) or 'none'}"

    def _mesh_error(self, mesh: Mesh, model: Model, batch_size: int) -> str | None:
        return sharding_error(model, mesh.tensor) or pipeline_validation_error(
            model,
            self.split_points,
            mesh.pipeline,
            self.micro_batches,
            batch_size,
            self.schedule,
            self.chunks,
            shared_pairs(model, mesh),
        )

    def parameters_by_rank(self, run: RunSpec, split_points: Sequence[str]) -> list[int]:
        """The number of parameters that each rank holds.

        Args:
            run: of this strategy.
            split_points: first block of every stage but the first.
        """
        from trainer.parallel.sharded_stage import parameters_by_rank

        mesh = self.mesh_of(run.world_size)
        return parameters_by_rank(run, mesh, split_points, column_parallel, row_parallel)

    def recompute_error(self, recompute: Recompute) -> str | None:
        error = recompute_error(self.schedule)
        return error or (sharded_recompute_error(recompute) if self.shards_layers else None)

    @property
    def parts_of_work(self) -> int:
        return parts_of_work(self.schedule, self.micro_batches, self.chunks)

    def bubble(self, ranks: int) -> float | None:
        return bubble(self.mesh_of(ranks).pipeline, self.parts_of_work)

    def train(self, session: Session) -> None:
        from trainer.parallel.pipeline_stage import choose_split_points
        from trainer.parallel.sharded_stage import ShardedStage

        task, mesh = session.task, self.mesh_of(session.size)
        split_points = choose_split_points(
            task,
            session.comm,
            mesh.pipeline * chunks_of(self.schedule, self.chunks),
            session.saved("split_points") or self.split_points,  # else they could differ when it resumes
            self.micro_batches,
            shared_pairs(task.spec.model, mesh),
        )
        # The first rank of a group is its colour.
        data_group, pipeline_group, tensor_group = (
            session.comm.split(colour=mesh.group(session.rank, dimension)[0])
            for dimension in mesh.dimensions
        )
        session.peers = data_group
        stage = ShardedStage(
            task,
            session.clock,
            pipeline_group,
            tensor_group,
            split_points,
            data_group.rank,
            column_parallel,
            row_parallel,
            splits_backward=self.schedule == "zero_bubble",
        )
        session.start(stage)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # With this weight, the mean over the replicas is the mean over the samples of the step.
                loss_weight = batch.share * mesh.data
                micro_batches = stage.split_batch(batch, self.micro_batches, loss_weight)
                forward_backward(stage, self.schedule, micro_batches)
                gradient = stage.gradient()
                data_group.all_reduce(gradient, "mean")
                stage.set_gradient(gradient)
                stage.step()


def shared_pairs(model: Model, mesh: Mesh) -> list[ParallelPair]:
    """Return the pairs of layers that the ranks of a tensor group share."""
    return model.tensor_parallel_pairs if mesh.tensor > 1 else []
