"""Mistakes of registered models: their laws, layers and sizes, what dropout draws, what a rank builds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainer.conformance.law import examine_all
from trainer.conformance.model import laws

from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.text import Copy
from trainer.models.base import Model
from trainer.models.layers.dropout import ChannelDropout, Dropout
from trainer.models.layers.residual import ResidualBlock
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.spec.registries import MODELS

SHAPE, CLASSES = (1, 28, 28), 10
SMALLER = {
    "wide_resnet": {"widen": 1},
    "gpt": {"layers": 1},
    "vgg_small": {"width": 4},
    "vit_small": {"layers": 1},
}
Blocks = list[tuple[str, nn.Module]]


def build(form: Any, seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> Blocks:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [*MODELS.parse(form).blocks(shape, classes, torch.Generator().manual_seed(5))]


def chain(blocks: Blocks) -> nn.Sequential:
    return nn.Sequential(*(block for _, block in blocks))


def images(batch: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def numbers(blocks: Blocks) -> int:
    return sum(each.numel() for each in chain(blocks).parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS.entries)
def test_a_model_keeps_all_laws(name: str) -> None:
    """On tokens or images, that are not square if it takes them; its blocks have names of identifiers."""
    model: Model = MODELS.parse({"name": name, **SMALLER.get(name, {})})
    sizes = [{"channels": 3, "height": 8, "width": 12}, {"channels": 3, "height": 28, "width": 28}]
    data = [Copy(length=4)] if model.takes_tokens else [Synthetic(**size) for size in sizes]
    dataset = next(each for each in data if not model.validation_error(each.shape))
    before = torch.get_rng_state()
    found = {each.law: each for each in examine_all(laws(model, dataset), Path())}
    assert torch.equal(torch.get_rng_state(), before)
    assert [each for each in found.values() if each.status == "failed"] == []
    skipped = {law for law, each in found.items() if each.status == "skipped"}
    assert skipped <= {"samples", "pairs", "classes"}
    assert found["splits"].inputs == len(model.names) - 1
    assert all(each.isidentifier() for each in model.names)


def test_outputs_are_log_probabilities_also_of_one_sample() -> None:
    for name in (each for each in MODELS.entries if not MODELS.parse(each).takes_tokens):
        for channels, classes, batch in ((1, 10, 1), (3, 4, 2)):
            shape = (channels, 28, 28)
            form = {"name": name, **SMALLER.get(name, {})}
            output = chain(build(form, shape=shape, classes=classes))(images(batch, shape))
            assert (output.shape, output.dtype) == ((batch, classes), torch.float32), name
            torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(batch))


# Layers


def test_models_have_the_layers_of_the_labs_and_of_an_example() -> None:
    relu, pool, last = nn.ReLU(), nn.MaxPool2d(2), nn.LogSoftmax(dim=1)
    drop, channels = (kind(0.5, torch.Generator()) for kind in (Dropout, ChannelDropout))
    lenet = [nn.Conv2d(1, 10, 5), pool, relu, nn.Conv2d(10, 30, 5), pool, relu, drop, pool, nn.Flatten()]
    lenet5 = [nn.Conv2d(1, 6, 5, padding=2), relu, pool, nn.Conv2d(6, 16, 5), relu, pool, nn.Flatten()]
    lenet += [nn.Linear(120, 60), relu, nn.Linear(60, 10), last]
    lenet5 += [nn.Linear(400, 120), relu, nn.Linear(120, 10), last]
    mnist = [nn.Conv2d(1, 10, 5), pool, relu, nn.Conv2d(10, 20, 5), channels, pool, relu, nn.Flatten()]
    mnist += [nn.Linear(320, 50), relu, drop, nn.Linear(50, 10), last]  # as in the example of PyTorch
    vgg, convolution = list[nn.Module](), partial(nn.Conv2d, kernel_size=3, padding=1)
    for inputs, width in ((1, 32), (32, 64), (64, 128)):
        vgg += [convolution(inputs, width), relu, convolution(width, width), relu, pool]
    vgg += [nn.Flatten(), nn.Linear(128 * 3 * 3, 256), relu, drop, nn.Linear(256, 10), last]
    for name, expected in {"lenet": lenet, "lenet5": lenet5, "mnist_cnn": mnist, "vgg_small": vgg}.items():
        assert [repr(block) for _, block in build(name)] == [*map(repr, expected)]
        assert {each.probability for each in chain(build(name)) if isinstance(each, Dropout)} <= {0.5}


def test_models_have_the_published_numbers_of_parameters() -> None:
    """Of Wide ResNets: tables 4 and 5 of the paper, on CIFAR-10."""
    assert numbers(build("fedavg_cnn")) == 1_663_370
    assert numbers(build({"name": "mlp", "hidden": []}, shape=(3, 5, 4))) == 60 * 10 + 10
    of_mlp = numbers(build({"name": "mlp", "hidden": [9, 8]}, shape=(3, 5, 4)))
    assert of_mlp == 60 * 9 + 9 + 9 * 8 + 8 + 8 * 10 + 10
    for widen, blocks, parameters in ((2, 2, 0.7e6), (10, 4, 36.5e6)):
        with torch.device("meta"):
            form = {"name": "wide_resnet", "widen": widen, "blocks_per_group": blocks}
            assert numbers(build(form, shape=(3, 32, 32))) == pytest.approx(parameters, rel=0.02)


def test_models_of_fixed_size_reject_other_images() -> None:
    for name in ("fedavg_cnn", "lenet", "lenet5", "mnist_cnn"):
        model = MODELS.parse(name)
        assert model.validation_error((3, 28, 28)) is None
        for shape in ((3, 32, 32), (1, 28, 27)):
            assert f"28×28 pixels, not {shape[1]}×{shape[2]}" in (model.validation_error(shape) or "")


@pytest.mark.parametrize("name", ["vgg_small", "wide_resnet"])
def test_models_that_downsample_have_a_least_size_and_a_choice_of_norms(name: str) -> None:
    assert MODELS.parse(name).validation_error((3, 8, 9)) is None
    assert "8×8 pixels, not 9×7" in (MODELS.parse(name).validation_error((3, 9, 7)) or "")
    output = chain(build(name, shape=(3, 8, 9), classes=4))(images(1, (3, 8, 9)))
    assert output.shape == (1, 4)  # a batch of one sample, in training
    for norm, kind in {"batch": nn.BatchNorm2d, "sync_batch": SyncBatchNorm, "group": nn.GroupNorm}.items():
        model, blocks = MODELS.parse({"name": name, "norm": norm}), build({"name": name, "norm": norm})
        norms = [m for m in chain(blocks).modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
        assert {*map(type, norms)} == {kind}
        assert [block for block, _ in blocks] == model.names
        assert model.has_synchronous_layers == (norm == "sync_batch")
        assert model.batch_statistics == (norm != "group")


def test_residual_block_equals_the_formula_of_the_paper() -> None:
    for channels, stride in ((4, 1), (6, 1), (6, 2)):
        block, x = ResidualBlock(4, channels, stride, "batch").train(), images(5, (4, 9, 8))
        first = torch.relu(nn.BatchNorm2d(4)(x))
        second = torch.relu(nn.BatchNorm2d(channels)(block.conv1(first)))
        same = (channels, stride) == (4, 1)
        shortcut = x if same else block.shortcut(first)
        torch.testing.assert_close(block(x), shortcut + block.conv2(second))
        assert isinstance(block.shortcut, nn.Identity) == same


# Dropout


def test_dropout_drops_with_its_probability_and_keeps_the_mean() -> None:
    for probability in (0.1, 0.9):
        x = torch.ones(400, 500, requires_grad=True)
        dropped = Dropout(probability, torch.Generator().manual_seed(0))(x)
        kept = dropped[dropped > 0]
        assert kept.numel() / dropped.numel() == pytest.approx(1 - probability, abs=0.01)
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
        dropped.sum().backward()
        assert torch.equal(x.grad, dropped.detach())  # type: ignore[arg-type]


def test_dropout_draws_a_new_mask_each_time_from_its_own_generator_unless_it_is_off() -> None:
    ones = torch.ones(1000)
    first, second, other = (Dropout(0.5, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    drawn = first(ones)
    torch.manual_seed(0)
    again, later, others = second(ones), second(ones), other(ones)
    assert [torch.equal(each, drawn) for each in (again, later, others)] == [True, False, False]
    generator = torch.Generator().manual_seed(3)
    before, x = generator.get_state(), images()
    for off in (
        *(kind(0.5, generator).eval() for kind in (Dropout, ChannelDropout)),
        Dropout(0.0, generator),
    ):
        assert torch.equal(off(x), x)
    assert torch.equal(generator.get_state(), before)


def test_channel_dropout_drops_whole_channels_of_single_samples() -> None:
    drawn = []
    for memory in (torch.contiguous_format, torch.channels_last):
        ones = torch.ones(200, 50, 3, 4).contiguous(memory_format=memory)
        dropped = ChannelDropout(0.3, torch.Generator().manual_seed(0))(ones)
        factors = dropped[:, :, :1, :1]
        assert torch.equal(dropped, factors.expand_as(dropped))
        assert dropped.is_contiguous(memory_format=memory)
        drawn.append(dropped)
    assert torch.equal(*drawn)  # in any memory format
    kept = factors > 0
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7))
    assert kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.3 * 0.7 / 10_000) ** 0.5)
    assert len(torch.unique(kept.flatten(1), dim=0)) == 200  # no two samples lose the same channels
