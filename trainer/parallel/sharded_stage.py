"""Sharded pipeline stage: the blocks of a stage, whose layers are divided over a tensor-parallel group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.models.split_points import stage_blocks
from trainer.parallel.mesh import Mesh
from trainer.parallel.pipeline_stage import PipelineStage
from trainer.parallel.tensor_layers import LayerForward, ModelSharder
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task


class ShardedStage(PipelineStage):
    """A pipeline stage of which each rank of a group holds shards of the layers, and copies of the others.

    No pair of layers spans two stages. So activations between stages are equal on all ranks of the group,
    and rank t exchanges them with rank t of the groups of the neighbouring stages. Ranks t of all stages
    form one pipeline.
    """

    def __init__(
        self,
        task: Task,
        clock: Clock,
        pipeline: Communicator,
        tensor: Communicator,
        split_points: Sequence[str],
        replica: int,
        column: LayerForward,
        row: LayerForward,
        *,
        splits_backward: bool = False,
    ) -> None:
        """Build this rank's shards of its blocks.

        Args:
            task: model, data and optimizer of the run.
            clock: the clock of this rank.
            pipeline: communicator of the ranks of one pipeline, in the order of their stages.
            tensor: communicator of the ranks that hold shards of the same stage.
            split_points: first block of every stage but the first.
            replica: index of this copy of the model; it seeds the dropout generator.
            column, row: forward functions of column- and row-parallel layers.
            splits_backward: whether passes of kind "weight" follow those of kind "input".
        """
        self._sharder = ModelSharder(task.spec.model.tensor_parallel_pairs, tensor, column, row)
        self._holds_output = tensor.rank == 0
        super().__init__(
            task,
            clock,
            pipeline,
            split_points,
            replica,
            splits_backward=splits_backward,
            take=self._sharder,
        )

    def squared_gradient_norm(self) -> Tensor:
        """As `Replica.squared_gradient_norm`: shards count on each rank, replicated layers once."""
        own = self._squares()
        sharded = self._sharder.sharded(self._parameters).to(own)
        all_squares, all_sharded = self._of_whole_model(torch.stack([own, sharded]))
        return self._sharder.squared_norm(all_squares, all_sharded.bool())

    def predict(self, inputs: Tensor) -> Tensor | None:
        """The output of the whole model, on the first rank of the last stage only. Every rank calls it."""
        output = super().predict(inputs)
        return output if self._holds_output else None

    def _stage_weights(self) -> Tensor:
        return self._sharder.full(self._state)


def parameters_by_rank(
    spec: RunSpec, mesh: Mesh, split_points: Sequence[str], column: LayerForward, row: LayerForward
) -> list[int]:
    """Return the number of parameters that each rank of a mesh holds, without memory for them.

    Args:
        spec: a run, with its model and its dataset.
        split_points: first block of every stage but the first. Rank r of P holds stages r, r + P, ….
        column, row: forward functions of column- and row-parallel layers.
    """
    model, dataset, stages = spec.model, spec.dataset, stage_blocks(spec.model.names, split_points)
    group, counts = ThreadGroup(mesh.tensor), {}
    for shard in range(mesh.tensor):
        comm = MemoryCommunicator(shard, mesh.tensor, Clock(), group)
        sharder = ModelSharder(model.tensor_parallel_pairs, comm, column, row)
        with torch.device("meta"):
            blocks = {
                name: sharder(name, block)
                for name, block in model.blocks(dataset.shape, dataset.outputs, torch.Generator("cpu"))
            }
        for number in range(mesh.pipeline):
            held = nn.Sequential(*(blocks[name] for own in stages[number :: mesh.pipeline] for name in own))
            counts[number, shard] = sum(parameter.numel() for parameter in held.parameters())
    positions = map(mesh.position, range(mesh.size))
    return [counts[each.pipeline, each.tensor] for each in positions]
