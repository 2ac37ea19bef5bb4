"""Expert parallelism equals all_reduce: losses and gradients of each step, final weights, and bytes."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.unit.threads import together
from tests.unit.trainer.parallel.test_partitioned_models import with_losses
from tests.unit.training import train
from trainer.comm.base import Communicator
from trainer.models.layers.experts import Experts
from trainer.models.layers.transformer import Mlp
from trainer.parallel.expert_replica import DividedExperts
from trainer.spec.run_spec import RunSpec
from trainer.strategies.expert_parallel import through_ranks

WINDOW, WIDTH = 12, 16
TOKENS = {"name": "induction", "length": WINDOW - 1, "tokens": 15, "samples": 110, "test_samples": 21}
GPT = {"name": "gpt", "layers": 2, "width": WIDTH, "heads": 4, "dropout": 0.1, "experts": 5}
RUN: dict[str, Any] = {"batch_size": 10, "epochs": 1, "optimizer": "adam", "lr": 0.002, "dataset": TOKENS}
NAME = "expert_parallel"


def assert_equal(ranks: int, **run: Any) -> None:
    (expected, losses), (divided, found) = (
        with_losses(name, ranks, **run) for name in ("all_reduce", NAME)
    )
    # Of each step, in the order in which ranks finish it.
    of_steps, expected_losses = (np.sort(np.reshape(each, (-1, ranks))) for each in (found, losses))
    assert len(of_steps) == divided.results[0].steps
    np.testing.assert_allclose(of_steps, expected_losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(divided.weights, expected.weights, rtol=0, atol=1e-12)
    assert len({result.weights_digest for result in divided.results}) == 1
    for mine, other in zip(divided.of("epoch"), expected.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "fields",
    [
        {"capacity_factor": None, "balance": 0.0},
        {"balance": 0.5},
        {"top_k": 2, "capacity_factor": 0.6, "activation": "swiglu", "positions": "rope", "tied": True},
    ],
    ids=str,
)
def test_expert_parallel_equals_all_reduce_in_every_step(ranks: int, fields: dict[str, Any]) -> None:
    """Dropout included. Parts of the 110 samples differ in size on 3 and 4 ranks."""
    assert_equal(ranks, **RUN, model={**GPT, **fields})


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("uneven", ["join", "drop", "pad"])
def test_ranks_with_fewer_samples_count_less(uneven: str) -> None:
    """With join, a rank has no samples left in the last steps: what its tokens add has weight 0."""
    run = {**RUN, "model": GPT, "partitioner": "quantity"}
    found = train({"name": NAME, "uneven": uneven}, 3, **run)
    expected = train({"name": "all_reduce", "uneven": uneven}, 3, **run)
    assert len({result.samples for result in found.results}) == (3 if uneven == "join" else 1)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("ranks", [2, 5])
def test_one_step_of_plain_sgd_has_the_gradient_of_serial_for_each_weight(ranks: int) -> None:
    """With no limit and no balance, routers of parts choose as the router of the whole batch."""
    model = {**GPT, "dropout": 0.0, "capacity_factor": None, "balance": 0.0, "top_k": 2}
    run = {**RUN, "model": model, "optimizer": "sgd", "lr": 1.0, "batch_size": 110, "batch_per": "run"}
    serial, divided = train("serial", 1, **run), train(NAME, ranks, **run)
    assert divided.results[0].steps == 1
    np.testing.assert_allclose(divided.weights, serial.weights, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (NAME, 2),
        ("all_reduce", 2),
        ({"name": "pipeline", "split_points": ["block2"], "micro_batches": 4}, 2),
        ({"name": "hybrid", "split_points": ["block2"], "micro_batches": 4}, 4),
        ({"name": "tensor_parallel", "sequence_parallel": True}, 2),
        ("context_parallel", 2),
        ("tensor_parallel", 2),
    ],
    ids=str,
)
def test_every_strategy_weighs_the_balance_loss_as_the_loss(
    strategy: Any, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over tokens, in place of the balance loss, does not depend on how tokens are divided."""

    def mean_over_tokens(probabilities: Tensor) -> Tensor:
        return probabilities[:, 0].mean()

    monkeypatch.setattr("trainer.models.layers.experts.balance_loss", mean_over_tokens)
    model = {**GPT, "dropout": 0.0, "capacity_factor": None, "balance": 5.0}
    run = {**RUN, "model": model, "optimizer": "sgd", "lr": 1.0, "batch_size": 110, "batch_per": "run"}
    serial, split = train("serial", 1, **run), train(strategy, ranks, **run)
    np.testing.assert_allclose(split.weights, serial.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
def test_tokens_come_back_in_their_places_and_so_do_gradients(ranks: int) -> None:
    """Rank 0 sends none to the last rank's experts, and rank 1 all."""
    torch.manual_seed(0)
    whole = Experts(Mlp(WIDTH, 8, "gelu") for _ in range(5)).double()
    loads = [[2, 0, 3, 1, 0], [0, 0, 0, 0, 4], [1, 1, 1, 1, 1]][:ranks]
    inputs = [torch.randn(sum(load), WIDTH, dtype=torch.float64).requires_grad_() for load in loads]
    expected = [whole(x, load) for x, load in zip(inputs, loads, strict=True)]
    sum((each**2).sum() * (rank + 1) for rank, each in enumerate(expected)).backward()  # type: ignore[union-attr]
    of_experts = [[parameter.grad for parameter in expert.parameters()] for expert in whole]
    state = whole.state_dict()

    def on_rank(comm: Communicator) -> tuple[Tensor, Tensor | None, list[list[Tensor | None]]]:
        copy = Experts(Mlp(WIDTH, 8, "gelu") for _ in range(5)).double()
        copy.load_state_dict(state)
        layer = DividedExperts(copy, comm, through_ranks)
        x = inputs[comm.rank].detach().requires_grad_()
        y = layer(x, loads[comm.rank])
        ((y**2).sum() * (comm.rank + 1)).backward()
        own = [[parameter.grad for parameter in expert.parameters()] for expert in layer.own]
        return y.detach(), x.grad, own

    outcomes = together(ranks, on_rank)
    for (y, gradient, _), x, output in zip(outcomes, inputs, expected, strict=True):
        torch.testing.assert_close(y, output.detach())
        torch.testing.assert_close(gradient, x.grad)
    torch.testing.assert_close([each for _, _, own in outcomes for each in own], of_experts)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bytes_of_a_step_are_those_of_the_formula(ranks: int) -> None:
    """With room for one token, every expert has one of every rank."""
    batch, experts, layers = 8, 5, 2
    model = {**GPT, "capacity_factor": 0.05, "layers": layers}
    dataset = {**TOKENS, "samples": batch * ranks * 4}
    result = train(NAME, ranks, **{**RUN, "batch_size": batch, "model": model, "dataset": dataset}).results[
        0
    ]
    capacity = ceil(0.05 * batch * WINDOW / experts)
    longest = capacity * ceil(experts / ranks)
    tokens = 4 * experts * (ranks - 1) + 4 * 4 * WIDTH * longest * (ranks - 1)
    expert = WIDTH * 64 + 64 + 64 * WIDTH + WIDTH
    copies = result.parameters - layers * ceil(experts / ranks) * expert
    summed = 2 * 4 * copies * (ranks - 1) / ranks
    assert result.steps == 4
    assert result.bytes_sent == pytest.approx(4 * (layers * tokens + summed))


def test_a_rank_holds_its_experts() -> None:
    training = train(NAME, 3, **RUN, model=GPT)
    expert = 2 * (WIDTH * 64 + 64 + 64 * WIDTH + WIDTH)  # in both layers
    most, _, least = [result.parameters for result in training.results]
    assert most - least == expert
    for result in training.results:
        assert result.state_bytes["gradient"] == 4 * result.parameters
        assert result.state_bytes["weights"] == 4 * result.parameters + 2 * 16  # each layer counts choices
    assert len(training.weights) == least + 4 * expert


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"nodes": 6}, ("1 to 5",)),
        ({"nodes": 2, "model": {**GPT, "experts": 0}}, ("gpt with experts",)),
        ({"nodes": 2, "model": "lenet", "dataset": "digits"}, ("gpt with experts",)),
    ],
    ids=str,
)
def test_what_ranks_cannot_divide_is_refused(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": NAME, "model": GPT, "dataset": TOKENS, "epochs": 2, **fields})
    assert all(each in str(caught.value) for each in named)


def test_one_rank_equals_serial_bitwise() -> None:
    serial, alone = (train(name, 1, **RUN, model=GPT) for name in ("serial", NAME))
    np.testing.assert_array_equal(alone.weights, serial.weights)
    assert alone.results[0].bytes_sent == 0
