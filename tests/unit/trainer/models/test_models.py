"""Mistakes in models of images and their layers: published sizes, least images, norms, dropout."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.models.layers.dropout import ChannelDropout, Dropout
from trainer.models.layers.residual import ResidualBlock
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.spec.registries import MODELS

Shape = tuple[int, ...]
SMALLER = {"wide_resnet": {"widen": 1}, "vgg_small": {"width": 4}, "vit_small": {"layers": 1}}


def build(name: str, shape: Shape = (1, 28, 28), classes: int = 10, **parameters: Any) -> nn.Sequential:
    blocks = MODELS.parse({"name": name, **parameters}).blocks(shape, classes, torch.Generator())
    return nn.Sequential(*(block for _, block in blocks))


def images(batch: int, shape: Shape) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))


def numbers(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def test_outputs_are_log_probabilities_also_of_one_sample() -> None:
    """And of one image of the least size, in training."""
    for name in (each for each in MODELS.entries if not MODELS.parse(each).takes_tokens):
        for shape, classes, batch in (((1, 28, 28), 10, 1), ((3, 28, 28), 4, 2), ((3, 8, 9), 4, 1)):
            if MODELS.parse(name).validation_error(shape) is None:
                output = build(name, shape, classes, **SMALLER.get(name, {}))(images(batch, shape))
                assert (output.shape, output.dtype) == ((batch, classes), torch.float32), name
                torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(batch))


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
        assert [*map(repr, build(name))] == [*map(repr, expected)]
        assert {each.probability for each in build(name) if isinstance(each, Dropout)} <= {0.5}


def test_models_have_the_published_numbers_of_parameters() -> None:
    """Of Wide ResNets: tables 4 and 5 of the paper, on CIFAR-10."""
    assert numbers(build("fedavg_cnn")) == 1_663_370
    for hidden, parameters in (([], 60 * 10 + 10), ([9, 8], 60 * 9 + 9 + 9 * 8 + 8 + 8 * 10 + 10)):
        assert numbers(build("mlp", (3, 5, 4), hidden=hidden)) == parameters
    for widen, blocks, parameters in ((2, 2, 0.7e6), (10, 4, 36.5e6)):
        with torch.device("meta"):
            model = build("wide_resnet", (3, 32, 32), widen=widen, blocks_per_group=blocks)
        assert numbers(model) == pytest.approx(parameters, rel=0.02)


def test_models_reject_images_of_other_sizes() -> None:
    fixed, least = ("fedavg_cnn", "lenet", "lenet5", "mnist_cnn"), ("vgg_small", "wide_resnet")
    for names, right, wrong in (
        (fixed, (28, 28), (32, 32)),
        (fixed, (28, 28), (28, 27)),
        (least, (8, 9), (9, 7)),
    ):
        for name in names:
            error = MODELS.parse(name).validation_error
            assert error((3, *right)) is None
            smallest, (height, width) = min(right), wrong
            assert f"{smallest}×{smallest} pixels, not {height}×{width}" in (error((3, *wrong)) or "")


@pytest.mark.parametrize("name", ["vgg_small", "wide_resnet"])
def test_models_that_downsample_have_a_choice_of_norms(name: str) -> None:
    for norm, kind in {"batch": nn.BatchNorm2d, "sync_batch": SyncBatchNorm, "group": nn.GroupNorm}.items():
        model = MODELS.parse({"name": name, "norm": norm})
        blocks = dict(model.blocks((1, 28, 28), 10, torch.Generator()))
        modules = [each for block in blocks.values() for each in block.modules()]
        assert {type(each) for each in modules if isinstance(each, nn.BatchNorm2d | nn.GroupNorm)} == {kind}
        assert [*blocks] == model.names
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


def test_dropout_drops_with_its_probability_and_keeps_the_mean() -> None:
    for kind, probability in ((Dropout, 0.1), (Dropout, 0.9), (ChannelDropout, 0.3)):
        x = torch.ones(400, 500, 1, 1, requires_grad=True)
        dropped = kind(probability, torch.Generator().manual_seed(0))(x)
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
    before, x = generator.get_state(), images(6, (1, 28, 28))
    for off in (
        Dropout(0.5, generator).eval(),
        ChannelDropout(0.5, generator).eval(),
        Dropout(0.0, generator),
    ):
        assert torch.equal(off(x), x)
    assert torch.equal(generator.get_state(), before)


def test_channel_dropout_drops_whole_channels_of_single_samples() -> None:
    """The same in any memory format, and no two samples lose the same."""
    drawn = []
    for memory in (torch.contiguous_format, torch.channels_last):
        ones = torch.ones(200, 50, 3, 4).contiguous(memory_format=memory)
        drawn.append(ChannelDropout(0.3, torch.Generator().manual_seed(0))(ones))
        assert drawn[-1].is_contiguous(memory_format=memory)
    factors = drawn[0][:, :, :1, :1]
    assert all(torch.equal(each, factors.expand_as(each)) for each in drawn)
    assert len(torch.unique(factors.flatten(1), dim=0)) == 200
