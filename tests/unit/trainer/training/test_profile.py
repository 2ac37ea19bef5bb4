"""Mistakes in profiles of blocks: what counts per sample or batch, which passes are timed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tests.unit.conftest import FakeTime
from trainer.models.shapes import block_shapes
from trainer.spec.registries import MODELS
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import profile_blocks, profile_model

BATCH = 4
LABELS = torch.arange(BATCH) % 3


def run(model: object) -> RunSpec:
    fields = {"strategy": "serial", "dataset": "digits", "batch_size": BATCH}
    return RunSpec.model_validate({**fields, "model": model})


@pytest.mark.parametrize("name", ["lenet", {"name": "wide_resnet", "widen": 1}], ids=["lenet", "resnet"])
def test_counts_of_every_block(name: object) -> None:
    """Each block is that of the model, and saved bytes add up to those of the whole model."""
    spec, model = run(name), MODELS.parse(name)
    blocks = profile_model(spec)
    assert [block.name for block in blocks] == model.names
    built = nn.Sequential(*(block for _, block in model.blocks((1, 28, 28), 10, torch.Generator())))
    assert [b.parameters for b in blocks] == [sum(p.numel() for p in block.parameters()) for block in built]
    assert [block.output_shape for block in blocks] == block_shapes(model, spec.dataset)[1:]
    for block in blocks:
        assert block.output_bytes == 4 * torch.Size(block.output_shape).numel()
        assert (block.flops > 0) == (block.parameters > 0 and block.name != "norm")
        assert block.forward_s > 0
    own = {t.untyped_storage().data_ptr() for t in (*built.parameters(), *built.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        built.train()(torch.randn(BATCH, 1, 28, 28))
    expected = sum(storage.nbytes() for at, storage in kept.items() if at not in own)
    assert sum(block.saved_bytes for block in blocks) * BATCH == expected


def test_counts_of_known_layers() -> None:
    flatten, fc1, relu1, output, log_softmax = profile_model(run({"name": "mlp", "hidden": [50]}))
    assert (flatten.flops, flatten.saved_bytes, flatten.output_bytes) == (0, 0, 4 * 784)
    assert (fc1.parameters, fc1.flops) == (784 * 50 + 50, 2 * 784 * 50)
    assert fc1.saved_bytes == 4 * 784  # its input, needed for the weight gradient
    assert (relu1.flops, relu1.saved_bytes) == (0, 4 * 50)  # its output
    assert output.saved_bytes == 0  # relu1 has saved this tensor already
    assert log_softmax.saved_bytes == 4 * 10
    convolution = [("conv", nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten()))]
    (block,) = profile_blocks(convolution, torch.randn(BATCH, 2, 9, 8), LABELS, warm_up=0, runs=1)
    assert block.flops == 2 * (2 * 5 * 5) * 3 * 5 * 4  # for each output element


class TimedIdentity(nn.Module):
    """The identity with given forward and backward seconds for each pass."""

    def __init__(self, clock: FakeTime, forward_s: list[float], backward_s: list[float]) -> None:
        super().__init__()
        self.clock, self.times = clock, list(zip(forward_s, backward_s, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        forward_s, backward_s = self.times.pop(0)
        self.clock.pass_(forward_s)
        y = x * 1

        def later(gradient: Tensor) -> None:
            self.clock.pass_(backward_s)

        if y.requires_grad:
            y.register_hook(later)
        return y


def test_times_are_medians_after_warm_up() -> None:
    clock = FakeTime(0.0)
    # The first pass counts bytes, the second warms up.
    early = TimedIdentity(clock, [900, 500, 1, 3, 80], [900, 500, 10, 30, 20])
    late = TimedIdentity(clock, [900, 500, 7, 5, 6], [900, 500, 70, 50, 60])
    first = TimedIdentity(clock, [1, 1, 1, 1, 1], [9, 9, 9, 9, 9])  # no parameters before it
    blocks = [("first", first), ("fc", nn.Linear(6, 3)), ("early", early), ("late", late)]
    head, fc, one, two, out = profile_blocks(
        [*blocks, ("out", nn.LogSoftmax(1))], torch.randn(BATCH, 6), LABELS, warm_up=1, runs=3, clock=clock
    )
    assert (head.forward_s, head.backward_s) == (1, 0)
    assert (one.forward_s, one.backward_s, one.seconds) == (3, 20, 23)
    assert (two.forward_s, two.backward_s, two.seconds) == (6, 60, 66)
    assert fc.seconds == out.seconds == 0
    assert blocks[1][1].weight.grad is None
