"""Meshes equal all_reduce on as many replicas, or serial: the gradient, each loss, the final weights."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.support.step_bytes import mean_step_bytes
from tests.unit.threads import running_clock
from tests.unit.training import SMALL, Training, train
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.parallel.mesh import Mesh
from trainer.parallel.split_backward import SplitLayers
from trainer.parallel.tensor_layers import ParallelLayer
from trainer.spec.run_spec import RunSpec
from trainer.strategies.hybrid import Hybrid
from trainer.strategies.tensor_parallel import column_parallel, row_parallel
from trainer.training.replica import Replica
from trainer.training.session import Session

GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4}
LLAMA = {"positions": "rope", "norm": "rms", "activation": "swiglu"}
TIED = {**GPT, **LLAMA, "tied": True, "dropout": 0.1}
# 23 samples in batches of 9 of a replica: replicas and batches are unequal, and so are micro-batches.
TOKENS: dict[str, Any] = {
    "dataset": {"name": "induction", "length": 7, "tokens": 9, "samples": 23, "test_samples": 20},
    "batch_size": 9,
    "epochs": 1,
    "optimizer": "adam",
    "lr": 0.002,
}
IMAGES: dict[str, Any] = {
    **TOKENS,
    "dataset": {**SMALL["dataset"], "samples": 23, "height": 12, "width": 9},  # type: ignore[dict-item]
}
VGG = {"name": "vgg_small", "width": 6, "hidden": 10, "norm": "group", "dropout": 0.0}
EIGHT = {"data": 2, "pipeline": 2, "tensor": 2}
Losses = dict[int, list[float]]


def with_losses(strategy: Any, ranks: int, **fields: Any) -> tuple[Training, Losses]:
    """Train. Also return the losses of all steps of each rank that knows them."""
    losses: Losses = defaultdict(list)
    start, step, rank_of = Session.start, Replica.step, {}

    def starting(self: Session, replica: Replica, *arguments: Any) -> None:
        rank_of[replica] = self.rank
        start(self, replica, *arguments)

    def recording(self: Replica) -> None:
        step(self)
        if self.loss is not None:
            losses[rank_of[self]].append(self.loss.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "start", starting)
        patch.setattr(Replica, "step", recording)
        return train(strategy, ranks, **fields), losses


def assert_equal_training(mesh: dict[str, int], parameters: dict[str, Any], **fields: Any) -> Training:
    """Train with a mesh, and compare with whole replicas."""
    own = Mesh(**mesh)
    reference = "all_reduce" if own.data > 1 else "serial"
    expected, losses = with_losses(reference, own.data, **fields)
    found, losses_found = with_losses({"name": "hybrid", "mesh": mesh, **parameters}, own.size, **fields)
    last = [rank for rank in range(own.size) if own.position(rank).pipeline == own.pipeline - 1]
    assert sorted(losses_found) == last
    for rank in last:
        replica = losses[own.position(rank).data]
        assert len(replica) > 0
        np.testing.assert_allclose(losses_found[rank], replica, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    for mine, other in zip(found.of("epoch"), expected.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)
    assert [each.samples for each in found.results if each.samples] == [
        each.samples for each in expected.results
    ]
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mesh", "parameters", "fields"),
    [
        ({"data": 2}, {"micro_batches": 2}, {**TOKENS, "model": {**GPT, "tied": True}}),
        ({"data": 2, "tensor": 2}, {"micro_batches": 1}, {**TOKENS, "model": TIED, "clip_norm": 0.3}),
        ({"tensor": 3}, {"micro_batches": 1}, {**TOKENS, "model": TIED}),
        ({"tensor": 3}, {"micro_batches": 4}, {**IMAGES, "model": {"name": "mlp", "hidden": [7, 8, 9]}}),
        ({"pipeline": 2, "tensor": 2}, {}, {**TOKENS, "model": GPT, "clip_norm": 0.3}),
        ({"pipeline": 2, "tensor": 2}, {}, {**IMAGES, "model": VGG, "clip_norm": 0.3}),
        # Not with adam: BatchNorm makes the gradient of a bias before it 0, but for rounding.
        (EIGHT, {"micro_batches": 1}, {**IMAGES, "model": {**VGG, "norm": "batch"}, "optimizer": "sgd"}),
        (EIGHT, {"schedule": "gpipe"}, {**IMAGES, "model": {"name": "mlp", "hidden": [7, 8, 9]}}),
        (EIGHT, {"schedule": "interleaved"}, {**TOKENS, "model": {**GPT, **LLAMA}, "clip_norm": 0.3}),
        (EIGHT, {"schedule": "zero_bubble"}, {**TOKENS, "model": GPT}),
    ],
    ids=str,
)
def test_a_mesh_equals_whole_replicas(
    mesh: dict[str, int], parameters: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert assert_equal_training(mesh, parameters, **fields).same_weights


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_the_gradient_of_each_parameter_is_that_of_whole_replicas(schedule: str) -> None:
    """One step of size 1."""
    fields = {**TOKENS, "dataset": {**TOKENS["dataset"], "samples": 11}, "optimizer": "sgd", "lr": 1.0}
    assert_equal_training(EIGHT, {"schedule": schedule}, **fields, model=GPT)


@pytest.mark.usefixtures("double")
def test_sharded_layers_leave_the_gradient_of_their_weights_to_the_end() -> None:
    """With schedule zero_bubble, also row-parallel layers."""
    comm = MemoryCommunicator(0, 1, running_clock(), ThreadGroup(1))
    layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
    model = nn.Sequential(
        ParallelLayer(layers[0], comm, column_parallel), ParallelLayer(layers[1], comm, row_parallel)
    )
    split = SplitLayers(model)
    model(torch.ones(5, 3).requires_grad_()).sum().backward()
    assert [layer.weight.grad for layer in layers] == [None, None]
    split.run(split.take())
    assert all(layer.weight.grad is not None for layer in layers)
    assert torch.equal(layers[1].bias.grad, torch.full((2,), 5.0))


def test_bytes_sent_equal_the_formula() -> None:
    """Of the docstring: 4B·(a + g) + 4n·2(D − 1)/D + Σ 4B·(in + out)·2(T − 1)/T."""
    fields = {**TOKENS, "dataset": {**TOKENS["dataset"], "samples": 36}, "model": GPT}
    mesh = {"name": "hybrid", "mesh": EIGHT, "split_points": ["block2"]}
    training = train(mesh, 8, **fields)
    passed = 8 * 16  # activations of a sample between blocks: tokens, width
    pairs = 2  # of the block of each stage
    for rank, result in enumerate(training.results):
        # Two steps of 9 samples. One stage sends activations, the other their gradients.
        assert result.steps == 2
        batch = 4 * 9 * passed
        assert result.bytes_sent == 2 * (batch + 4 * result.parameters + pairs * 2 * batch)
        neighbour = rank + 2 if rank % 4 < 2 else rank - 2
        assert result.bytes_to == [2 * batch * (to == neighbour) for to in range(8)]
    spec = RunSpec.model_validate({**fields, "strategy": mesh, "nodes": 8, "transport": "memory"})
    parameters = [result.parameters for result in training.results]
    mean = fmean(result.bytes_sent for result in training.results)
    assert mean == 2 * (mean_step_bytes(spec, 2 * 9, parameters, whole=0) or 0)


# Places of ranks


def test_ranks_of_a_tensor_group_are_neighbours_and_those_of_a_data_group_farthest_apart() -> None:
    mesh = Mesh(data=2, pipeline=3, tensor=2)
    assert [tuple(mesh.position(rank)) for rank in (0, 1, 2, 5, 6, 11)] == [
        *((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 1), (1, 0, 0), (1, 2, 1)),
    ]
    groups = [[*mesh.group(9, dimension)] for dimension in mesh.dimensions]
    assert groups == [[3, 9], [7, 9, 11], [8, 9]]


def test_without_shards_ranks_are_ordered_by_replica_and_stage() -> None:
    mesh = Mesh(data=3, pipeline=4)
    assert [mesh.position(rank)[:2] for rank in range(12)] == [divmod(rank, 4) for rank in range(12)]


def test_the_shape_of_old_sweep_files_is_a_mesh() -> None:
    assert Hybrid.model_validate({"shape": [2, 4]}) == Hybrid(mesh=Mesh(data=2, pipeline=4))
    assert Hybrid.model_validate({"shape": None}) == Hybrid()


def test_one_rank_of_a_replica_reports_its_samples_and_its_first_stage_has_them() -> None:
    hybrid = Hybrid(mesh=Mesh(**EIGHT))
    assert [rank for rank in range(8) if hybrid.reports_samples(rank, 8)] == [0, 4]
    assert [rank for rank in range(8) if hybrid.sees_inputs(rank, 8)] == [0, 1, 4, 5]
    assert [hybrid.replica_of(rank, 8) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


# Validation

MLP = {"name": "mlp", "hidden": [9, 8, 7]}  # fc1 and fc2, fc3 and output


@pytest.mark.parametrize(
    ("mesh", "nodes", "fields", "facts"),
    [
        (
            EIGHT,
            4,
            {},
            ["{data: 2, pipeline: 2, tensor: 2} has 8 ranks", "4 nodes", "{data: 2, tensor: 2}"],
        ),
        ({"data": 2}, 6, {"model": MLP}, ["allowed: {data: 6}, {data: 3, pipeline: 2}"]),
        ({"tensor": 5}, 5, {"model": GPT}, ["block1.attention.qkv", "1 to 4 ranks"]),
        ({"tensor": 2}, 2, {"model": {"name": "mlp", "hidden": []}}, ["no pair"]),
        ({"pipeline": 5}, 5, {"model": GPT}, ["5 stages", "4 blocks"]),
        (
            {"pipeline": 6, "tensor": 2},
            12,
            {"model": MLP},
            ["6 stages", "5", "points: fc1, relu2, fc3, log"],
        ),
        (
            {"pipeline": 2, "tensor": 2},
            4,
            {"model": MLP, "split_points": ["relu1"]},
            ["split point relu1", "pair fc1, fc2", "allowed: fc1, relu2, fc3, log_softmax"],
        ),
        ({"pipeline": 3}, 3, {"schedule": "zero_bubble", "micro_batches": 2}, ["(3), not 2"]),
        ({"tensor": 2}, 2, {"schedule": "interleaved"}, ["two stages or more"]),
        ({"pipeline": 2}, 2, {"model": {**GPT, "tied": True}}, ["tied: true"]),
        ({"tensor": 2}, 2, {"precision": "bf16"}, ["exchange activations", "float32"]),
        ({"tensor": 2}, 2, {"recompute": "full"}, ["allowed: none, selective"]),
        ({"tensor": 2}, 2, {"optimizer": "novograd"}, ["shards of it"]),
        ({"tensor": 0, "data": 2}, 2, {}, ["greater than or equal to 1"]),
        ({"expert": 2}, 2, {}, ["Extra inputs"]),
    ],
    ids=str,
)
def test_invalid_meshes_are_refused(
    mesh: dict[str, int], nodes: int, fields: dict[str, Any], facts: list[str]
) -> None:
    own = {name: value for name, value in fields.items() if name in Hybrid.model_fields}
    others = {name: value for name, value in fields.items() if name not in own}
    run = {"model": GPT, **others, "strategy": {"name": "hybrid", "mesh": mesh, **own}, "nodes": nodes}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**(IMAGES if run["model"]["name"] == "mlp" else TOKENS), **run})
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []


@pytest.mark.parametrize("mesh", [{"data": 2}, {"tensor": 2}])
def test_weights_can_be_tied_where_there_is_one_stage(mesh: dict[str, int]) -> None:
    strategy = {"name": "hybrid", "mesh": mesh}
    RunSpec.model_validate({**TOKENS, "model": {**GPT, "tied": True}, "strategy": strategy, "nodes": 2})
