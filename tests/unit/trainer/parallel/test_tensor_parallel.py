"""Tensor parallelism equals serial: the same loss in each step, the same weights after gathering."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.threads import running_clock
from tests.unit.trainer.conformance.test_conformance_models import UNSCALED
from tests.unit.trainer.parallel.test_partitioned_models import Losses, with_losses
from tests.unit.training import SMALL, Training, train
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.data.base import Data, Split
from trainer.models.base import ParallelPair
from trainer.models.layers.dropout import ChannelDropout
from trainer.models.lenet import LeNet
from trainer.parallel.tensor_layers import ModelSharder, ShardedDropout, Sharding
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.strategies.tensor_parallel import column_parallel, row_parallel
from trainer.training.task import Task

NAME = "tensor_parallel"
MOMENTUM: dict[str, Any] = {"batch_size": 11, "epochs": 5, "optimizer": "momentum", "lr": 0.02}  # 55 steps
ADAM: dict[str, Any] = {**MOMENTUM, "optimizer": "adam", "lr": 0.002}
TINY = {"dataset": {"name": "synthetic", "samples": 60, "test_samples": 20, "height": 12, "width": 9}}
# Small, with widths that the ranks of these tests do not divide.
NARROW = [
    {"name": "vgg_small", "width": 5, "hidden": 10},
    {"name": "vgg_small", "width": 6, "hidden": 10, "norm": "batch"},
    {"name": "vgg_small", "width": 12, "hidden": 10, "norm": "group"},  # groups of 3 channels
    {"name": "wide_resnet", "widen": 1, "norm": "batch"},
    {"name": "wide_resnet", "widen": 3, "norm": "group"},  # groups of 3 channels
]
TOKENS = {"name": "copy", "length": 4, "samples": 60, "test_samples": 20}
SIZE = {"layers": 2, "width": 16, "heads": 4, "dropout": 0.1}
TRANSFORMERS = [
    {"name": "gpt", **SIZE},
    {"name": "gpt", **SIZE, "positions": "rope", "norm": "rms", "activation": "swiglu", "tied": True},
    {"name": "vit_small", **SIZE, "patch": 3},
]


def second_of_two() -> MemoryCommunicator:
    """A communicator for code that reads only its rank and size."""
    return MemoryCommunicator(1, 2, running_clock(), ThreadGroup(2))


def sharder(pairs: list[ParallelPair]) -> ModelSharder:
    return ModelSharder(pairs, second_of_two(), column_parallel, row_parallel)


def serial_and_parallel(ranks: int, **fields: Any) -> tuple[Training, Training, Losses]:
    """Train serially and tensor-parallel. Also returns the difference of the losses in each step."""
    (serial, losses), (parallel, found) = (
        with_losses("serial", 1, **fields),
        with_losses(NAME, ranks, **fields),
    )
    assert len(losses) == serial.results[0].steps
    # Every rank records the loss of every step, and all record it before any starts the next step.
    return serial, parallel, [a - b for a, b in zip(np.repeat(losses, ranks), found, strict=True)]


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("fields", [MOMENTUM, ADAM], ids=["momentum", "adam"])
@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        ("lenet", 2),  # with dropout of replicated activations
        ("lenet", 3),  # 10 channels, 4 + 3 + 3
        ("lenet", 4),
        ("mnist_cnn", 3),  # and channel dropout
        ({"name": "mlp", "hidden": [5]}, 4),  # 2 + 1 + 1 + 1
        ({"name": "mlp", "hidden": [9, 7]}, 3),  # the third layer is replicated
        ({"name": "mlp", "hidden": [9, 8, 7]}, 2),
        ({"name": "mlp", "hidden": [9, 8, 7, 6]}, 4),
    ],
    ids=str,
)
def test_tensor_parallel_equals_serial_in_every_step(
    model: Any, ranks: int, fields: dict[str, Any]
) -> None:
    serial, parallel, off = serial_and_parallel(ranks, model=model, **fields)
    assert len(off) == 55 * ranks
    np.testing.assert_allclose(off, 0, atol=1e-12)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=1e-12)
    for mine, other in zip(parallel.of("epoch"), serial.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("model", "ranks"), [(model, ranks) for model in NARROW for ranks in (2, 3)], ids=str
)
def test_tensor_parallel_equals_serial_with_norms_and_residual_blocks(model: Any, ranks: int) -> None:
    """Also with dropout between the two layers of a pair."""
    serial, parallel, off = serial_and_parallel(ranks, model=model, **{**MOMENTUM, **TINY, "epochs": 1})
    np.testing.assert_allclose(off, 0, atol=1e-12)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("model", TRANSFORMERS, ids=str)
def test_tensor_parallel_transformers_equal_serial(model: dict[str, Any], ranks: int) -> None:
    """By heads and hidden units, with dropout after each branch."""
    fields = {**ADAM, "dataset": TOKENS if model["name"] == "gpt" else TINY["dataset"], "model": model}
    serial, parallel, off = serial_and_parallel(ranks, **{**fields, "epochs": 2})
    np.testing.assert_allclose(off, 0, atol=1e-12)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("model", TRANSFORMERS[:2], ids=str)
def test_sequence_parallel_transformers_equal_serial(model: dict[str, Any], ranks: int) -> None:
    tokens = {"name": "induction", "length": 11, "tokens": 15, "samples": 60, "test_samples": 20}
    run = {**ADAM, "dataset": tokens, "model": model, "epochs": 2}
    strategy = {"name": NAME, "sequence_parallel": True}
    (serial, losses), (parallel, found) = (
        with_losses("serial", 1, **run),
        with_losses(strategy, ranks, **run),
    )
    np.testing.assert_allclose(found, np.repeat(losses, ranks), rtol=0, atol=1e-12)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=1e-12)
    assert len({result.weights_digest for result in parallel.results}) == 1
    for mine, other in zip(parallel.of("epoch"), serial.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]


def test_sequence_parallelism_sends_the_bytes_of_tensor_parallelism() -> None:
    """But for the gradients of replicated weights. Its ranks store fewer activations."""
    tokens = {"name": "induction", "length": 11, "tokens": 15, "samples": 44, "test_samples": 20}
    run = {**ADAM, "dataset": tokens, "model": {"name": "gpt", **SIZE}, "epochs": 1}
    plain, divided = (
        train({"name": NAME, "sequence_parallel": each}, 2, **run).results[0] for each in (False, True)
    )
    # Embedding and head, positions, norms and row-parallel biases of two blocks, the last norm.
    replicated = 15 * 16 * 2 + 12 * 16 + 2 * (2 * 2 * 16 + 2 * 16) + 2 * 16
    summed = 4 * (replicated + 2)  # 2·(P − 1)/P of it, with the loss and the accuracy
    assert divided.bytes_sent == pytest.approx(plain.bytes_sent + plain.steps * summed)
    assert plain.activation_bytes is not None
    assert divided.activation_bytes is not None
    assert divided.activation_bytes < 0.9 * plain.activation_bytes


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_single_precision_only_rounding_differs_from_serial(ranks: int) -> None:
    """Where rounding flips a ReLU or a max-pool, losses differ by up to 5e-3 within 55 steps."""
    serial, parallel, off = serial_and_parallel(ranks, model="lenet", **MOMENTUM)
    np.testing.assert_allclose(off[: 30 * ranks], 0, atol=2e-5)
    np.testing.assert_allclose(off, 0, atol=5e-3)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=5e-3)


def test_one_rank_equals_serial_bitwise() -> None:
    """Also with a model without pairs."""
    for model in ("lenet", {"name": "mlp", "hidden": []}):
        fields = {**MOMENTUM, "model": model, "epochs": 2}
        serial, alone = train("serial", 1, **fields), train(NAME, 1, **fields)
        np.testing.assert_array_equal(alone.weights, serial.weights)
        assert alone.results[0].bytes_sent == 0


def test_every_rank_ends_with_the_same_weights() -> None:
    """The digest of each rank includes its own copy of the replicated layers."""
    training = train(NAME, 3, model={"name": "mlp", "hidden": [9, 7]}, **ADAM)
    assert len({result.weights_digest for result in training.results}) == 1
    assert training.results[0].weights_digest is not None


# Traffic and memory


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("lenet", 30 * 8 * 8 + 120 + 10),  # conv1 takes images; fc1 takes 120
        ({"name": "mlp", "hidden": [9]}, 10),
        ({"name": "mlp", "hidden": [9, 8, 7]}, 8 + 8 + 10),
    ],
    ids=str,
)
def test_bytes_sent_equal_the_formula(model: Any, values: int, ranks: int) -> None:
    """4B·(in + out)·2(P − 1)/P per step and pair; over all steps, B adds up to the samples."""
    training = train(NAME, ranks, model=model, **MOMENTUM)
    samples = 5 * 120
    for result in training.results:
        assert result.bytes_sent == pytest.approx(4 * samples * values * 2 * (ranks - 1) / ranks)
        assert result.seconds["compute"] > 0
        assert result.seconds["communicate"] > 0


@pytest.mark.slow
def test_a_rank_reports_its_shard() -> None:
    training = train(NAME, 4, model="lenet", **MOMENTUM)
    for channels, result in zip((3, 3, 2, 2), training.results, strict=True):
        conv1, conv2 = channels * (25 + 1), 30 * channels * 25 + 30
        fc1, fc2 = 15 * (120 + 1), 10 * 15 + 10
        assert result.parameters == conv1 + conv2 + fc1 + fc2
        assert result.state_bytes == dict.fromkeys(
            ("weights", "gradient", "optimizer"), 4 * result.parameters
        )
        assert (result.steps, result.blocks) == (55, None)
    assert [result.samples for result in training.results] == [600, 0, 0, 0]
    assert [len(training.of("partition", rank)) for rank in range(4)] == [5, 0, 0, 0]
    assert len({result.accuracy for result in training.results}) == 1


def test_at_most_one_full_block_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(RunSpec.model_validate({"strategy": NAME, "nodes": 2}), Path())
    split = Split(np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, np.int64))
    task.data = Data(split, split, 10, UNSCALED)
    built: list[weakref.ref[nn.Parameter]] = []
    blocks = LeNet.blocks

    def checked_blocks(*arguments: Any) -> Iterator[tuple[str, nn.Module]]:
        for name, block in blocks(*arguments):
            assert all(weight() is None for weight in built), f"when {name} is built"
            built.extend(weakref.ref(weight) for weight in block.parameters() if weight.dim() > 1)
            yield name, block

    monkeypatch.setattr(LeNet, "blocks", checked_blocks)
    model = task.build_model(0, take=sharder(task.spec.model.tensor_parallel_pairs))
    assert len(built) == 4
    assert [tuple(weight.shape[:2]) for weight in model.parameters() if weight.dim() > 1] == [
        *((5, 1), (30, 5)),
        *((30, 120), (10, 30)),
    ]


# Pairs


@pytest.mark.parametrize("name", MODELS.entries)
def test_pairs_of_every_model_are_layers_in_forward_order(name: str) -> None:
    model = MODELS.parse(name)
    chain = nn.Sequential()
    with torch.device("meta"):
        shape = (7,) if model.takes_tokens else (1, 28, 28)
        for block, module in model.blocks(shape, 10, torch.Generator("cpu")):
            chain.add_module(block, module)
    layers: dict[str, Any] = {
        path: layer for path, layer in chain.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
    }
    assert model.tensor_parallel_pairs
    paths = [path for pair in model.tensor_parallel_pairs for path in (pair.column, pair.row)]
    assert len(set(paths)) == len(paths)
    assert paths == [path for path in layers if path in paths]
    for pair in model.tensor_parallel_pairs:
        outputs, inputs = len(layers[pair.column].weight), layers[pair.row].weight.shape[1]
        assert outputs % pair.units == inputs % pair.units == 0


def test_a_layer_with_weights_inside_a_pair_is_refused() -> None:
    shard = sharder([ParallelPair("first", "second", 4)])
    shard("first", nn.Linear(3, 4))
    with pytest.raises(TypeError, match="Linear"):
        shard("between", nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("model", "nodes", "facts"),
    [
        ("lenet", 11, ["conv1", "conv2", "1 to 10"]),
        ({"name": "mlp", "hidden": [64, 8, 3]}, 4, ["fc3", "output", "1 to 3"]),
        ({"name": "mlp", "hidden": []}, 2, ["no pair"]),
        ({"name": "vgg_small", "width": 12, "norm": "group"}, 5, ["1 to 4"]),
        ({"name": "wide_resnet", "widen": 1}, 17, ["block1.conv1", "block1.conv2", "1 to 16"]),
    ],
    ids=str,
)
def test_more_ranks_than_shards_are_refused(model: Any, nodes: int, facts: list[str]) -> None:
    fields = {**SMALL, "strategy": NAME, "model": model}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**fields, "nodes": nodes})
    (error,) = caught.value.errors()
    assert error["type"] == "strategy"
    assert [fact for fact in facts if fact not in error["ctx"]["reason"]] == []
    assert RunSpec.model_validate({**fields, "nodes": 1}).world_size == 1


def test_sharded_channel_dropout_draws_the_mask_of_the_whole_model() -> None:
    """No registered model has channel dropout inside a pair yet."""
    whole = ChannelDropout(0.5, torch.Generator().manual_seed(3))
    expected = whole(torch.ones(6, 10, 4, 5))
    for rank in range(3):
        sharding = Sharding((4, 3, 3), rank)
        drawing = ChannelDropout(0.5, torch.Generator().manual_seed(3))
        mine = ShardedDropout(drawing, sharding)(torch.ones(6, sharding.sizes[rank], 4, 5))
        assert torch.equal(mine, sharding.shard(expected, dim=1))
