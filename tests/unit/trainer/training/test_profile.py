"""Profiles of blocks: exact counts, and times measured per block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import nll_loss

from trainer.models.shapes import block_shapes
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import BlockProfile, profile_blocks, profile_model

BATCH = 4


def run(model: object) -> RunSpec:
    fields = {"strategy": "serial", "dataset": "digits", "batch_size": BATCH}
    return RunSpec.model_validate({**fields, "model": model})


def random_images(*shape: int) -> Tensor:
    return torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))


LABELS = torch.arange(BATCH) % 3


def profile_chain(*blocks: nn.Module, images: Tensor) -> list[BlockProfile]:
    named = [(f"b{at}", block) for at, block in enumerate(blocks)]
    return profile_blocks(named, images, LABELS, warm_up=0, runs=1)


# Counts


@pytest.mark.parametrize("name", ["lenet", "mlp", "vgg_small", {"name": "wide_resnet", "widen": 1}])
def test_counts_of_every_block_of_every_model(name: object) -> None:
    spec = run(name)
    model = MODELS.parse(name)
    blocks = profile_model(spec)
    assert [block.name for block in blocks] == model.names
    with torch.device("meta"):
        built = [block for _, block in model.blocks((1, 28, 28), 10, torch.Generator("cpu"))]
    assert [b.parameters for b in blocks] == [sum(p.numel() for p in block.parameters()) for block in built]
    shapes = block_shapes(model, spec.dataset)[1:]
    assert [block.output_shape for block in blocks] == shapes
    for block in blocks:
        assert block.output_bytes == 4 * torch.Size(block.output_shape).numel()
        assert (block.flops > 0) == (block.parameters > 0 and block.name != "norm")
        assert block.forward_s > 0


def test_counts_of_an_mlp() -> None:
    flatten, fc1, relu1, output, log_softmax = profile_model(run({"name": "mlp", "hidden": [50]}))
    assert (flatten.flops, flatten.saved_bytes, flatten.output_bytes) == (0, 0, 4 * 784)
    assert (fc1.parameters, fc1.flops) == (784 * 50 + 50, 2 * 784 * 50)
    assert fc1.saved_bytes == 4 * 784  # its input, needed for the weight gradient
    assert (relu1.flops, relu1.saved_bytes) == (0, 4 * 50)  # its output
    assert output.saved_bytes == 0  # relu1 has saved this tensor already
    assert log_softmax.saved_bytes == 4 * 10


def test_flops_of_a_convolution() -> None:
    (block,) = profile_chain(nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten()), images=random_images(2, 9, 8))
    assert block.flops == 2 * (2 * 5 * 5) * 3 * 5 * 4  # for each output element


@pytest.mark.parametrize("name", ["lenet", "vgg_small", {"name": "wide_resnet", "widen": 1}])
def test_saved_bytes_add_up_to_those_of_the_whole_model(name: object) -> None:
    spec = run(name)
    model = nn.Sequential(*(b for _, b in spec.model.blocks((1, 28, 28), 10, torch.Generator()))).train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(random_images(1, 28, 28))
    expected = sum(storage.nbytes() for at, storage in kept.items() if at not in own)
    assert sum(block.saved_bytes for block in profile_model(spec)) * BATCH == expected


def test_weights_do_not_change_and_keep_no_gradient() -> None:
    fc = nn.Linear(6, 3)
    before = fc.weight.detach().clone()
    profile_chain(nn.Flatten(), fc, nn.LogSoftmax(1), images=random_images(1, 2, 3))
    assert torch.equal(fc.weight, before)
    assert fc.weight.grad is None


# Times


class FakeClock:
    """A clock that advances only when a test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedIdentity(nn.Module):
    """The identity with given forward and backward seconds for each pass."""

    def __init__(self, clock: FakeClock, forward_s: list[float], backward_s: list[float]) -> None:
        super().__init__()
        self.clock, self.times = clock, list(zip(forward_s, backward_s, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        forward_s, backward_s = self.times.pop(0)
        self.clock.now += forward_s
        y = x * 1

        def later(gradient: Tensor) -> None:
            self.clock.now += backward_s

        if y.requires_grad:
            y.register_hook(later)
        return y


def test_times_are_medians_after_warm_up() -> None:
    clock = FakeClock()
    # The first pass counts bytes, the second warms up.
    early = TimedIdentity(clock, [900, 500, 1, 3, 80], [900, 500, 10, 30, 20])
    late = TimedIdentity(clock, [900, 500, 7, 5, 6], [900, 500, 70, 50, 60])
    blocks = [("fc", nn.Linear(6, 3)), ("early", early), ("late", late), ("out", nn.LogSoftmax(1))]
    fc, one, two, out = profile_blocks(
        blocks, torch.randn(BATCH, 6), LABELS, warm_up=1, runs=3, clock=clock
    )
    assert (one.forward_s, one.backward_s, one.seconds) == (3, 20, 23)
    assert (two.forward_s, two.backward_s, two.seconds) == (6, 60, 66)
    assert fc.seconds == out.seconds == 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_no_backward_pass_before_the_first_parameters_unless_the_input_requires_a_gradient(
    requires_grad: bool,
) -> None:
    clock = FakeClock()
    first = TimedIdentity(clock, [1, 1], [1, 1])
    images = torch.randn(BATCH, 6).requires_grad_(requires_grad)
    blocks = [("first", first), ("fc", nn.Linear(6, 3)), ("out", nn.LogSoftmax(1))]
    block, *_ = profile_blocks(blocks, images, LABELS, warm_up=0, runs=1, clock=clock)
    assert (block.forward_s, block.backward_s) == (1, float(requires_grad))


def test_gradients_equal_those_of_the_whole_model() -> None:
    """Detaching the blocks from each other changes no gradient."""
    seen = []

    class Recording(nn.Linear):
        def zero_grad(self, set_to_none: bool = True) -> None:
            assert self.weight.grad is not None
            seen.append(self.weight.grad.clone())
            super().zero_grad(set_to_none)

    first, second = Recording(6, 5), Recording(5, 3)
    images = torch.randn(BATCH, 6)
    profile_chain(first, nn.ReLU(), second, nn.LogSoftmax(1), images=images)
    nll_loss(nn.Sequential(first, nn.ReLU(), second, nn.LogSoftmax(1))(images), LABELS).backward()
    for found, layer in zip(seen, (second, first), strict=True):
        assert layer.weight.grad is not None
        torch.testing.assert_close(found, layer.weight.grad)
