"""Tensor parallelism is serial: shares of layers, put together, give the same losses and weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.test_conformance_models import UNSCALED
from tests.unit.test_partitioned_models import Losses, with_losses
from tests.unit.threads import running_clock
from tests.unit.training import SMALL, Training, train
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.data.base import Data, Split
from trainer.data.datasets.synthetic import Synthetic
from trainer.models.base import ParallelPair
from trainer.models.layers.dropout import ChannelDropout
from trainer.models.lenet import LeNet
from trainer.parallel.tensor_layers import SharedDropout, Shares, Slicer
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

NAME = "tensor_parallel"
MOMENTUM: dict[str, Any] = {"batch_size": 11, "epochs": 5, "optimizer": "momentum", "lr": 0.02}  # 55 steps
ADAM: dict[str, Any] = {**MOMENTUM, "optimizer": "adam", "lr": 0.002}
TINY = {"dataset": {"name": "synthetic", "samples": 60, "test_samples": 20, "height": 12, "width": 9}}
# Small, with widths that the ranks of these tests do not divide; and every model as it is.
NARROW = [
    {"name": "vgg_small", "width": 5, "hidden": 10},
    {"name": "vgg_small", "width": 6, "hidden": 10, "norm": "batch"},
    {"name": "vgg_small", "width": 12, "hidden": 10, "norm": "group"},  # groups of 3 channels
    {"name": "wide_resnet", "widen": 1, "norm": "batch"},
    {"name": "wide_resnet", "widen": 3, "norm": "group"},  # groups of 3 channels
]


def second_of_two() -> MemoryCommunicator:
    """For what asks no more than where it is."""
    return MemoryCommunicator(1, 2, running_clock(), ThreadGroup(2))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainings in double precision: sums in another order differ by 1e-15, what is wrong by more."""
    load = Synthetic.load

    def as_double(self: Synthetic, directory: Path) -> Data:
        data = load(self, directory)
        train, test = (
            replace(split, images=split.images.astype(np.float64)) for split in (data.train, data.test)
        )
        return replace(data, train=train, test=test)

    monkeypatch.setattr(Synthetic, "load", as_double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(ranks: int, **fields: Any) -> tuple[Training, Training, Losses]:
    """Serial training, the same on so many ranks, and by how much the loss of each step differs."""
    (serial, losses), (shared, found) = (
        with_losses("serial", 1, **fields),
        with_losses(NAME, ranks, **fields),
    )
    assert len(losses) == serial.results[0].steps
    # Every rank knows the loss, of every step, and none can be a step ahead.
    return serial, shared, [a - b for a, b in zip(np.repeat(losses, ranks), found, strict=True)]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("fields", [MOMENTUM, ADAM], ids=["momentum", "adam"])
@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        ("lenet", 2),  # with dropout, of whole activations
        ("lenet", 3),  # 10 channels, 4 + 3 + 3
        ("lenet", 4),
        ("mnist_cnn", 3),  # and dropout of whole channels
        ({"name": "mlp", "hidden": [5]}, 4),  # 2 + 1 + 1 + 1
        ({"name": "mlp", "hidden": [9, 7]}, 3),  # the third layer is left over
        ({"name": "mlp", "hidden": [9, 8, 7]}, 2),
        ({"name": "mlp", "hidden": [9, 8, 7, 6]}, 4),
    ],
    ids=str,
)
def test_it_is_serial_step_by_step(model: Any, ranks: int, fields: dict[str, Any]) -> None:
    serial, shared, off = both(ranks, model=model, **fields)
    assert len(off) == 55 * ranks
    np.testing.assert_allclose(off, 0, atol=1e-12)
    np.testing.assert_allclose(shared.weights, serial.weights, rtol=0, atol=1e-12)
    for mine, other in zip(shared.of("epoch"), serial.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("model", "ranks"), [(model, ranks) for model in NARROW for ranks in (2, 3)], ids=str
)
def test_so_is_every_other_model(model: Any, ranks: int) -> None:
    """With dropout between a pair's layers, normalisation inside and outside, and residual blocks."""
    serial, shared, off = both(ranks, model=model, **{**MOMENTUM, **TINY, "epochs": 1})
    np.testing.assert_allclose(off, 0, atol=1e-12)
    np.testing.assert_allclose(shared.weights, serial.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_single_precision_it_is_serial_but_for_the_order_of_sums(ranks: int) -> None:
    """Where that turns a ReLU or the choice of a max-pool, losses part by 1e-3 in 55 steps, not more."""
    serial, shared, off = both(ranks, model="lenet", **MOMENTUM)
    np.testing.assert_allclose(off[: 30 * ranks], 0, atol=2e-5)
    np.testing.assert_allclose(off, 0, atol=5e-3)
    np.testing.assert_allclose(shared.weights, serial.weights, rtol=0, atol=5e-3)


def test_on_one_node_it_is_serial_to_the_bit() -> None:
    """Also with a model that has nothing to share out."""
    for model in ("lenet", {"name": "mlp", "hidden": []}):
        fields = {**MOMENTUM, "model": model, "epochs": 2}
        serial, alone = train("serial", 1, **fields), train(NAME, 1, **fields)
        np.testing.assert_array_equal(alone.weights, serial.weights)
        assert alone.results[0].bytes_sent == 0


def test_every_rank_ends_with_the_same_whole() -> None:
    """Also what each has kept by itself: the digest is of its own."""
    training = train(NAME, 3, model={"name": "mlp", "hidden": [9, 7]}, **ADAM)
    assert len({result.weights_digest for result in training.results}) == 1
    assert training.results[0].weights_digest is not None


# What it costs


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        ("lenet", 30 * 8 * 8 + 120 + 10),  # conv1 takes images; fc1 takes 120
        ({"name": "mlp", "hidden": [9]}, 10),
        ({"name": "mlp", "hidden": [9, 8, 7]}, 8 + 8 + 10),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_formula(model: Any, numbers: int, ranks: int) -> None:
    """A step's are 4B·(in + out)·2(P − 1)/P for each pair; over all steps, B sums up to the samples."""
    training = train(NAME, ranks, model=model, **MOMENTUM)
    samples = 5 * 120
    for result in training.results:
        assert result.bytes_sent == pytest.approx(4 * samples * numbers * 2 * (ranks - 1) / ranks)
        assert result.seconds["compute"] > 0
        assert result.seconds["communicate"] > 0


def test_a_rank_holds_its_share_and_gives_account_of_it() -> None:
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


def test_never_are_two_blocks_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(RunSpec.model_validate({"strategy": NAME, "nodes": 2}), Path())
    split = Split(np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, np.int64))
    task.data = Data(split, split, 10, UNSCALED)
    built: list[weakref.ref[nn.Parameter]] = []
    blocks = LeNet.blocks

    def watched(*arguments: Any) -> Iterator[tuple[str, nn.Module]]:
        for name, block in blocks(*arguments):
            assert all(weight() is None for weight in built), f"when {name} is built"
            built.extend(weakref.ref(weight) for weight in block.parameters() if weight.dim() > 1)
            yield name, block

    monkeypatch.setattr(LeNet, "blocks", watched)
    model = task.build_model(0, take=Slicer(task.spec.model.tensor_parallel_pairs, second_of_two()))
    assert len(built) == 4
    assert [tuple(weight.shape[:2]) for weight in model.parameters() if weight.dim() > 1] == [
        *((5, 1), (30, 5)),
        *((30, 120), (10, 30)),
    ]


# What a model says


@pytest.mark.parametrize("name", MODELS.entries)
def test_pairs_are_layers_of_the_model(name: str) -> None:
    """What else lies between them, the trainings above would tell."""
    model = MODELS.parse(name)
    chain = nn.Sequential()
    with torch.device("meta"):
        for block, module in model.blocks((1, 28, 28), 10, torch.Generator("cpu")):
            chain.add_module(block, module)
    layers: dict[str, Any] = {
        path: layer for path, layer in chain.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
    }
    assert model.tensor_parallel_pairs
    paths = [path for pair in model.tensor_parallel_pairs for path in (pair.column, pair.row)]
    assert len(set(paths)) == len(paths)
    assert paths == [path for path in layers if path in paths]
    for pair in model.tensor_parallel_pairs:
        given, taken = len(layers[pair.column].weight), layers[pair.row].weight.shape[1]
        assert given % pair.units == taken % given == 0


def test_what_has_weights_of_its_own_may_not_stand_between_a_pair() -> None:
    slicer = Slicer([ParallelPair("first", "second", 4)], second_of_two())
    slicer("first", nn.Linear(3, 4))
    with pytest.raises(TypeError, match="a Linear stands between"):
        slicer("between", nn.Linear(4, 4))


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


def test_dropout_of_channels_between_a_pair_is_the_whole_models() -> None:
    """No model has it there yet: each rank's share of what is dropped, channel by channel."""
    whole = ChannelDropout(0.5, torch.Generator().manual_seed(3))
    expected = whole(torch.ones(6, 10, 4, 5))
    for rank in range(3):
        shares = Shares((4, 3, 3), rank)
        drawing = ChannelDropout(0.5, torch.Generator().manual_seed(3))
        mine = SharedDropout(drawing, shares)(torch.ones(6, shares.sizes[rank], 4, 5))
        assert torch.equal(mine, shares.of(expected, dim=1))
