"""Mistakes in profiles of blocks: what counts per sample or batch, which passes are timed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.unit.conftest import FakeTime
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import profile_blocks, profile_model

BATCH = 4
LABELS = torch.arange(BATCH) % 3


def test_counts_of_known_layers() -> None:
    run = {"strategy": "serial", "batch_size": BATCH, "model": {"name": "mlp", "hidden": [50]}}
    flatten, fc1, relu1, output, log_softmax = profile_model(RunSpec.model_validate(run))
    assert (flatten.flops, flatten.saved_bytes, flatten.output_bytes) == (0, 0, 4 * 784)
    assert (fc1.parameters, fc1.flops) == (784 * 50 + 50, 2 * 784 * 50)
    assert fc1.saved_bytes == 4 * 784  # its input, needed for the weight gradient
    assert (relu1.flops, relu1.saved_bytes) == (0, 4 * 50)  # its output
    assert output.saved_bytes == 0  # relu1 has saved this tensor already
    assert log_softmax.saved_bytes == 4 * 10
    convolution = [("conv", nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten()))]
    (block,) = profile_blocks(convolution, torch.randn(BATCH, 2, 9, 8), LABELS, warm_up=0, runs=1)
    assert block.flops == 2 * (2 * 5 * 5) * 3 * 5 * 4  # for each output element


def test_flops_of_attention_have_the_products_of_tokens_with_tokens() -> None:
    tokens, heads, width = 8, 3, 12
    run = {
        "strategy": "serial",
        "batch_size": BATCH,
        "dataset": {"name": "induction", "length": tokens - 1, "tokens": tokens},
        "model": {"name": "gpt", "layers": 1, "heads": heads, "width": width},
    }
    embedding, block, _ = profile_model(RunSpec.model_validate(run))
    assert block.output_shape == (tokens, width)
    linear = 3 + 1 + 4 + 4  # query, key, value; output; and the two layers after attention
    attention = heads * 2 * (2 * tokens * tokens * width // heads)
    assert (embedding.flops, block.flops) == (0, 2 * linear * tokens * width**2 + attention)


class TimedIdentity(nn.Module):
    """The identity with given forward and backward seconds for each pass."""

    def __init__(self, clock: FakeTime, *passes: tuple[float, float]) -> None:
        super().__init__()
        self.clock, self.passes = clock, [*passes]

    def forward(self, x: Tensor) -> Tensor:
        forward_s, backward_s = self.passes.pop(0)
        self.clock.pass_(forward_s)
        y = x * 1
        if y.requires_grad:
            y.register_hook(lambda _: self.clock.pass_(backward_s))
        return y * 1


def test_times_are_medians_after_warm_up() -> None:
    clock = FakeTime(0.0)
    first = TimedIdentity(clock, *[(1, 9)] * 5)  # no parameters before it
    # The first pass counts bytes, the second warms up.
    early = TimedIdentity(clock, (900, 900), (500, 500), (1, 10), (3, 30), (80, 20))
    late = TimedIdentity(clock, (900, 900), (500, 500), (7, 70), (5, 50), (6, 60))
    blocks = [("first", first), ("fc", nn.Linear(6, 3)), ("early", early), ("late", late)]
    head, fc, one, two, out = profile_blocks(
        [*blocks, ("out", nn.LogSoftmax(1))], torch.randn(BATCH, 6), LABELS, warm_up=1, runs=3, clock=clock
    )
    assert (head.forward_s, head.backward_s) == (1, 0)
    assert (one.forward_s, one.backward_s, one.seconds) == (3, 20, 23)
    assert (two.forward_s, two.backward_s) == (6, 60)
    assert fc.seconds == out.seconds == 0
    assert blocks[1][1].weight.grad is None
