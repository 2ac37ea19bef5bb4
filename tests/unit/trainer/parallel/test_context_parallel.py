"""Context parallelism equals serial: attention and its gradients, losses of each step, final weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.support.step_bytes import mean_step_bytes
from tests.unit.threads import together
from tests.unit.trainer.parallel.test_partitioned_models import with_losses
from tests.unit.training import train
from trainer.comm.base import Communicator
from trainer.spec.run_spec import RunSpec
from trainer.strategies.context_parallel import ring_attention, ulysses_attention

WINDOW = 12
TOKENS = {"name": "induction", "length": WINDOW - 1, "tokens": 15, "samples": 110, "test_samples": 20}
COPY = {"name": "copy", "length": 4, "samples": 60, "test_samples": 20}
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.1}
RUN: dict[str, Any] = {"batch_size": 10, "epochs": 1, "optimizer": "adam", "lr": 0.002, "dataset": TOKENS}
RING, ULYSSES = ({"name": "context_parallel", "attention": each} for each in ("ring", "ulysses"))


@pytest.mark.parametrize("attention", [ring_attention, ulysses_attention])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_attention_and_its_gradients_are_those_of_one_rank(
    attention: Callable[[Tensor, Tensor, Tensor, Communicator], Tensor], ranks: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    whole = [torch.randn(2, 12, WINDOW, 3, **draw).requires_grad_() for _ in range(3)]
    weight = torch.randn(2, 12, WINDOW, 3, **draw)
    expected = scaled_dot_product_attention(*whole, is_causal=True)
    (expected * weight).sum().backward()

    def part(comm: Communicator) -> tuple[Tensor, list[Tensor]]:
        own = slice(comm.rank * WINDOW // ranks, (comm.rank + 1) * WINDOW // ranks)
        mine = [each.detach()[:, :, own].clone().requires_grad_() for each in whole]
        mixed = attention(*mine, comm)
        (mixed * weight[:, :, own]).sum().backward()
        return mixed.detach(), [each.grad for each in mine if each.grad is not None]

    found = together(ranks, part)
    torch.testing.assert_close(torch.cat([mixed for mixed, _ in found], dim=2), expected.detach())
    for at, each in enumerate(whole):
        torch.testing.assert_close(torch.cat([gradients[at] for _, gradients in found], dim=2), each.grad)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "fields", [{}, {"positions": "rope", "norm": "rms", "activation": "swiglu", "tied": True}]
)
@pytest.mark.parametrize(
    ("strategy", "ranks"), [(RING, 2), (RING, 3), (RING, 4), (ULYSSES, 2), (ULYSSES, 4)]
)
def test_context_parallel_equals_serial_in_every_step(
    strategy: dict[str, Any], ranks: int, fields: dict[str, Any]
) -> None:
    """Dropout included."""
    run = {**RUN, "model": {**GPT, **fields}}
    (serial, losses), (parallel, found) = (
        with_losses("serial", 1, **run),
        with_losses(strategy, ranks, **run),
    )
    assert len(losses) == serial.results[0].steps == 11
    np.testing.assert_allclose(found, np.repeat(losses, ranks), rtol=0, atol=1e-12)
    np.testing.assert_allclose(parallel.weights, serial.weights, rtol=0, atol=1e-12)
    for mine, other in zip(parallel.of("epoch"), serial.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)


@pytest.mark.parametrize("strategy", [RING, ULYSSES], ids=["ring", "ulysses"])
def test_all_ranks_end_with_the_same_weights(strategy: dict[str, Any]) -> None:
    training = train(strategy, 2, **{**RUN, "model": GPT})
    assert len({result.weights_digest for result in training.results}) == 1


@pytest.mark.parametrize(("strategy", "ranks"), [(RING, 2), (RING, 4), (ULYSSES, 2), (ULYSSES, 4)])
def test_the_bytes_of_a_step_are_those_of_the_formula(strategy: dict[str, Any], ranks: int) -> None:
    batch = 22
    run = {**RUN, "batch_size": batch, "model": GPT}
    training = train(strategy, ranks, **run)
    spec = RunSpec.model_validate({**run, "strategy": strategy, "nodes": ranks, "transport": "memory"})
    own = training.results[0].parameters
    expected = mean_step_bytes(spec, batch, [own] * ranks, own)
    assert expected is not None
    expected += 2 * 4 * 2 * (ranks - 1) / ranks  # the loss and the accuracy
    assert training.results[0].bytes_sent == pytest.approx(training.results[0].steps * expected)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"nodes": 5}, ("12", "5")),
        ({"nodes": 3, "strategy": ULYSSES}, ("heads", "4", "3")),
        ({"nodes": 2, "dataset": COPY}, ("7", "2")),
        ({"nodes": 2, "dataset": "digits", "model": "vit_small"}, ("tokens",)),
    ],
)
def test_what_ranks_cannot_divide_is_refused(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    run = {"strategy": RING, "transport": "gloo", "model": GPT, "dataset": TOKENS, **fields}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(run)
    assert all(each in str(caught.value) for each in named)


def test_one_rank_equals_serial_bitwise() -> None:
    run = {**RUN, "model": GPT}
    serial, alone = train("serial", 1, **run), train(RING, 1, **run)
    np.testing.assert_array_equal(alone.weights, serial.weights)
    assert alone.results[0].bytes_sent == 0
