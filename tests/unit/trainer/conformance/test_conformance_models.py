"""Conformance of models: every registered one is a chain of blocks that can be split anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from trainer.conformance.law import examine_all
from trainer.conformance.model import laws
from trainer.data.base import Data, Dataset, PixelScale, Split
from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.text import Copy
from trainer.models.base import Model
from trainer.models.fedavg_cnn import FedAvgCnn
from trainer.models.layers.dropout import ChannelDropout, Dropout
from trainer.models.layers.residual import ResidualBlock
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.models.lenet import LeNet
from trainer.models.lenet5 import LeNet5
from trainer.models.mlp import Mlp
from trainer.models.mnist_cnn import MnistCnn
from trainer.models.shapes import block_shapes
from trainer.models.vgg_small import VggSmall
from trainer.models.wide_resnet import WideResNet
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

SHAPE, CLASSES = (1, 28, 28), 10
UNSCALED = PixelScale(np.zeros((1, 1, 1), np.float32), np.ones((1, 1, 1), np.float32))
Blocks = list[tuple[str, nn.Module]]


@pytest.fixture(params=list(MODELS.entries))
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS.parse(request.param)


def build(model: Model, seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> Blocks:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [*model.blocks(shape, classes, torch.Generator().manual_seed(5))]


def chain(blocks: Blocks) -> nn.Sequential:
    return nn.Sequential(*(block for _, block in blocks))


def images(batch: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def weights(blocks: Blocks) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in chain(blocks).parameters()])


@pytest.mark.parametrize(("channels", "classes", "batch"), [(1, 10, 6), (3, 4, 2), (1, 10, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_output_is_log_probabilities(
    model: Model, channels: int, classes: int, batch: int, training: bool
) -> None:
    shape = (channels, 28, 28)
    if model.validation_error(shape):
        return
    whole = chain(build(model, shape=shape, classes=classes)).train(training)
    output = whole(images(batch, shape))
    assert output.shape == (batch, classes)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(batch))


def of_shape(shape: tuple[int, int, int]) -> Synthetic:
    """A dataset of images of this shape."""
    channels, height, width = shape
    return Synthetic(channels=channels, height=height, width=width, classes=CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dataset", [*map(of_shape, (SHAPE, (3, 28, 28), (3, 32, 32))), Copy(length=4)], ids=repr
)
def test_a_model_keeps_all_laws(model: Model, dataset: Dataset) -> None:
    if model.validation_error(dataset.shape) or model.takes_tokens != isinstance(dataset, Copy):
        return
    before = torch.get_rng_state()
    found = {each.law: each for each in examine_all(laws(model, dataset), Path())}
    assert torch.equal(torch.get_rng_state(), before)
    assert [each for each in found.values() if each.status == "failed"] == []
    assert {law for law, each in found.items() if each.status == "skipped"} <= {
        "samples",
        "pairs",
        "classes",
    }
    assert found["splits"].inputs == len(model.names) - 1


def test_block_names_are_identifiers(model: Model) -> None:
    assert all(name.isidentifier() for name in model.names)


def test_classifier_is_the_first_block_after_the_convolutions(model: Model) -> None:
    if model.classifier is None:
        return
    at = model.names.index(model.classifier)
    features, classifier = (chain(blocks) for blocks in (build(model)[:at], build(model)[at:]))
    assert any(isinstance(module, nn.Conv2d) for module in features.modules())
    assert not any(isinstance(module, nn.Conv2d) for module in classifier.modules())
    assert not any(isinstance(module, nn.Linear) for module in features.modules())


# LeNet


def test_lenet_has_the_layers_of_the_lab_sheet() -> None:
    blocks = [block for _, block in build(LeNet())]
    assert [type(block) for block in blocks] == [
        *(nn.Conv2d, nn.MaxPool2d, nn.ReLU),
        *(nn.Conv2d, nn.MaxPool2d, nn.ReLU, Dropout),
        *(nn.MaxPool2d, nn.Flatten),
        *(nn.Linear, nn.ReLU, nn.Linear, nn.LogSoftmax),
    ]
    convolutions: list[Any] = [block for block in blocks if isinstance(block, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(1, 10), (10, 30)]
    assert all((c.kernel_size, c.stride, c.padding) == ((5, 5), (1, 1), (0, 0)) for c in convolutions)
    assert all(pool.kernel_size == 2 for pool in blocks if isinstance(pool, nn.MaxPool2d))
    linear = [(f.in_features, f.out_features) for f in blocks if isinstance(f, nn.Linear)]
    assert linear == [(120, 60), (60, 10)]
    assert next(block.probability for block in blocks if isinstance(block, Dropout)) == 0.5
    assert weights(build(LeNet())).numel() == 15_660


def test_lenet5_has_the_layers_of_the_labs() -> None:
    blocks = [block for _, block in build(LeNet5())]
    assert [type(block) for block in blocks] == [
        *(nn.Conv2d, nn.ReLU, nn.MaxPool2d),
        *(nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten),
        *(nn.Linear, nn.ReLU, nn.Linear, nn.LogSoftmax),
    ]
    convolutions: list[Any] = [block for block in blocks if isinstance(block, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.padding) for c in convolutions] == [
        (1, 6, (5, 5), (2, 2)),
        (6, 16, (5, 5), (0, 0)),
    ]
    linear = [(f.in_features, f.out_features) for f in blocks if isinstance(f, nn.Linear)]
    assert linear == [(400, 120), (120, 10)]
    assert weights(build(LeNet5())).numel() == 51_902


def test_fedavg_cnn_has_the_published_number_of_parameters() -> None:
    assert weights(build(FedAvgCnn())).numel() == 1_663_370


@pytest.mark.parametrize("name", ["fedavg_cnn", "lenet", "lenet5", "mnist_cnn"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 27), (1, 8, 8)])
def test_models_of_fixed_size_reject_other_images(name: str, shape: tuple[int, int, int]) -> None:
    model = MODELS.parse(name)
    assert model.validation_error((3, 28, 28)) is None
    error = model.validation_error(shape)
    assert error is not None
    assert "28×28" in error
    assert f"{shape[1]}×{shape[2]}" in error
    dataset = {"name": "synthetic", **dict(zip(("channels", "height", "width"), shape, strict=True))}
    with pytest.raises(ValidationError, match="28×28") as caught:
        RunSpec.model_validate({"strategy": "serial", "dataset": dataset, "model": name})
    (details,) = caught.value.errors()
    assert (details["ctx"]["model"], details["ctx"]["dataset"]) == (name, "synthetic")


def test_mnist_cnn_equals_the_pytorch_example() -> None:
    """Compare with the example's forward pass on the same weights, in evaluation mode."""
    blocks = build(MnistCnn())
    by_name: dict[str, Any] = dict(blocks)
    x = images()
    y = functional.relu(functional.max_pool2d(by_name["conv1"](x), 2))
    y = functional.relu(functional.max_pool2d(by_name["conv2"](y), 2)).view(-1, 320)
    y = functional.relu(by_name["fc1"](y))
    expected = functional.log_softmax(by_name["fc2"](y), dim=1)
    torch.testing.assert_close(chain(blocks).eval()(x), expected, rtol=0, atol=0)
    assert [name for name, block in blocks if type(block) is ChannelDropout] == ["dropout_conv2"]
    assert [name for name, block in blocks if type(block) is Dropout] == ["dropout_fc1"]
    assert weights(blocks).numel() == 21_840


def test_mlp_has_the_requested_layers() -> None:
    for hidden in ([], [7], [9, 8, 7]):
        layers = [b for _, b in build(Mlp(hidden=hidden), shape=(3, 5, 4)) if isinstance(b, nn.Linear)]
        widths = [60, *hidden, 10]
        assert [(f.in_features, f.out_features) for f in layers] == list(pairwise(widths))


@pytest.mark.parametrize("name", ["vgg_small", "wide_resnet"])
def test_models_that_downsample_reject_small_images(name: str) -> None:
    model = MODELS.parse(name)
    assert model.validation_error((3, 8, 9)) is None
    error = model.validation_error((3, 9, 7))
    assert error is not None
    assert "8×8" in error
    assert "9×7" in error
    output = chain(build(model, shape=(3, 8, 9), classes=4))(images(1, (3, 8, 9)))
    assert output.shape == (1, 4)  # a batch of one sample, in training


@pytest.mark.parametrize("name", ["vgg_small", "wide_resnet"])
def test_norms_can_be_chosen(name: str) -> None:
    kinds = {"batch": nn.BatchNorm2d, "sync_batch": SyncBatchNorm, "group": nn.GroupNorm}
    for norm, kind in kinds.items():
        model = MODELS.parse({"name": name, "norm": norm})
        blocks = build(model)
        norms = [m for m in chain(blocks).modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
        assert norms
        assert all(type(module) is kind for module in norms)
        assert [block for block, _ in blocks] == model.names
        assert model.has_synchronous_layers == (norm == "sync_batch")


def test_wide_resnet_has_the_parameters_of_the_paper() -> None:
    """WRN-16-2 has 0.7 M and WRN-28-10 36.5 M parameters on CIFAR-10 (paper, tables 4 and 5)."""
    for widen, blocks_per_group, parameters in ((2, 2, 0.7e6), (10, 4, 36.5e6)):
        with torch.device("meta"):
            blocks = build(WideResNet(widen=widen, blocks_per_group=blocks_per_group), shape=(3, 32, 32))
            assert weights(blocks).numel() == pytest.approx(parameters, rel=0.02)


def test_wide_resnet_by_default_has_three_blocks_of_160_320_and_640_channels() -> None:
    shapes = dict(
        zip([*WideResNet().names, "output"], block_shapes(WideResNet(), of_shape(SHAPE)), strict=True)
    )
    assert shapes == {
        "stem": (1, 28, 28),
        "block1": (16, 28, 28),
        "block2": (160, 28, 28),
        "block3": (320, 14, 14),
        "norm": (640, 7, 7),
        "relu": (640, 7, 7),
        "pool": (640, 7, 7),
        "flatten": (640, 1, 1),
        "fc": (640,),
        "log_softmax": (10,),
        "output": (10,),
    }


@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (6, 1), (6, 2)])
def test_residual_block_equals_the_formula_of_the_paper(channels: int, stride: int) -> None:
    block = ResidualBlock(4, channels, stride, "batch").train()
    x = images(5, (4, 9, 8))
    first = torch.relu(nn.BatchNorm2d(4)(x))
    second = torch.relu(nn.BatchNorm2d(channels)(block.conv1(first)))
    shortcut = x if (channels, stride) == (4, 1) else block.shortcut(first)
    torch.testing.assert_close(block(x), shortcut + block.conv2(second))
    assert isinstance(block.shortcut, nn.Identity) == ((channels, stride) == (4, 1))


def test_vgg_small_has_most_parameters_in_its_classifier() -> None:
    blocks = build(VggSmall())
    at = VggSmall().names.index(VggSmall().classifier)
    assert [b.out_channels for _, b in blocks if isinstance(b, nn.Conv2d)] == [32, 32, 64, 64, 128, 128]
    assert weights(blocks[at:]).numel() == 128 * 3 * 3 * 256 + 256 + 256 * 10 + 10
    assert weights(blocks[at:]).numel() > weights(blocks[:at]).numel()


# Dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_with_its_probability_and_keeps_the_mean(probability: float) -> None:
    dropped = Dropout(probability, torch.Generator().manual_seed(0))(torch.ones(400, 500))
    kept = dropped[dropped > 0]
    assert kept.numel() / dropped.numel() == pytest.approx(1 - probability, abs=0.01)
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)


def test_dropout_draws_a_new_mask_each_time_from_its_own_generator() -> None:
    ones = torch.ones(1000)
    first, second = (Dropout(0.5, torch.Generator().manual_seed(3)) for _ in range(2))
    drawn = first(ones)
    torch.manual_seed(0)
    assert torch.equal(second(ones), drawn)
    assert not torch.equal(second(ones), drawn)
    assert not torch.equal(Dropout(0.5, torch.Generator().manual_seed(4))(ones), drawn)


def test_dropout_is_off_in_evaluation_and_at_zero() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    x = images()
    assert torch.equal(Dropout(0.5, generator).eval()(x), x)
    assert torch.equal(Dropout(0.0, generator).train()(x), x)
    assert torch.equal(ChannelDropout(0.5, generator).eval()(x), x)
    assert torch.equal(generator.get_state(), before)


def test_dropout_masks_the_gradient() -> None:
    x = torch.ones(1000, requires_grad=True)
    output = Dropout(0.5, torch.Generator().manual_seed(3))(x)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, output.detach())


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_channel_dropout_drops_whole_channels_of_single_samples(memory: torch.memory_format) -> None:
    ones = torch.ones(200, 50, 3, 4).contiguous(memory_format=memory)
    dropped = ChannelDropout(0.3, torch.Generator().manual_seed(0))(ones)
    factors = dropped[:, :, :1, :1]
    assert torch.equal(dropped, factors.expand_as(dropped))
    assert dropped.is_contiguous(memory_format=memory)
    kept = factors > 0
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7))
    assert kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.3 * 0.7 / 10_000) ** 0.5)
    assert len(torch.unique(kept.flatten(1), dim=0)) == 200  # no two samples lose the same channels
    again = ChannelDropout(0.3, torch.Generator().manual_seed(0))
    assert torch.equal(again(torch.ones(200, 50, 3, 4)), dropped)  # in any memory format


# Building the model of a rank


@pytest.fixture
def task() -> Task:
    task = Task(RunSpec.model_validate({"strategy": "one_shot", "nodes": 3}), Path())
    split = Split(np.zeros((4, *SHAPE), np.float32), np.zeros(4, np.int64))
    task.data = Data(split, split, CLASSES, UNSCALED)
    return task


def test_ranks_with_equal_weights_seed_start_from_equal_weights(task: Task) -> None:
    def vector(rank: int, weights_seed: int = 0) -> Tensor:
        return torch.cat(
            [p.detach().reshape(-1) for p in task.build_model(rank, weights_seed).parameters()]
        )

    assert torch.equal(vector(0), vector(2))
    assert torch.equal(vector(0, weights_seed=1), vector(1, weights_seed=1))
    assert not torch.equal(vector(0), vector(0, weights_seed=1))


def test_ranks_drop_different_activations(task: Task) -> None:
    x = images()
    first, again, other = (task.build_model(rank).train()(x) for rank in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_model_partition_has_the_weights_of_the_whole_model(task: Task) -> None:
    whole = task.build_model(0)
    part = task.build_model(0, only={"conv2", "fc1"})
    assert [name for name, _ in part.named_children()] == ["conv2", "fc1"]
    for name, weight in part.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name])


def test_building_a_model_does_not_advance_the_global_generator(task: Task) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        before = torch.get_rng_state()
        task.build_model(0)
        assert torch.equal(torch.get_rng_state(), before)


def test_threads_can_build_models_concurrently(task: Task) -> None:
    def vector(rank: int) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in task.build_model(rank).parameters()])

    alone = vector(0)
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(built, alone) for built in pool.map(vector, range(64)))
