"""Mistakes in the mixture of experts: who gets which token, capacity, gates, and the balance of loads."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.models.layers.experts import Experts, MixtureOfExperts, Router, balance_loss
from trainer.models.layers.transformer import Mlp

WIDTH, EXPERTS = 6, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(top_k: int = 1, capacity_factor: float | None = None, balance: float = 0.0) -> MixtureOfExperts:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        experts = Experts(Mlp(WIDTH, 8, "swiglu") for _ in range(EXPERTS))
        return MixtureOfExperts(experts, Router(WIDTH, EXPERTS, balance), top_k, capacity_factor).double()


def by_a_loop(layer: MixtureOfExperts, tokens: Tensor, top_k: int, capacity: int) -> Tensor:
    """The first choices of all tokens, then the second ones; an expert takes the first `capacity`."""
    probabilities = layer.router.scores(tokens).softmax(dim=-1)
    ranked = probabilities.argsort(dim=-1, descending=True)
    taken, y = [0] * EXPERTS, [torch.zeros(WIDTH, dtype=torch.float64) for _ in tokens]
    for choice in range(top_k):
        for at, token in enumerate(tokens):
            expert = int(ranked[at, choice])
            if taken[expert] < capacity:
                taken[expert] += 1
                gate = probabilities[at, expert]
                if top_k > 1:
                    gate = gate / probabilities[at, ranked[at, :top_k]].sum()
                experts: Any = layer.experts
                y[at] = y[at] + gate * experts[expert](token)
    return torch.stack(y)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("factor", [None, 1.25, 0.7, 0.01])
def test_outputs_and_gradients_are_those_of_a_loop_over_tokens(top_k: int, factor: float | None) -> None:
    layer, x = mixture(top_k, factor), drawn(3, 7, WIDTH)
    capacity = 1000 if factor is None else ceil(factor * top_k * 21 / EXPERTS)
    found = layer(x)
    expected = by_a_loop(layer, x.flatten(0, 1), top_k, capacity).view_as(x)
    torch.testing.assert_close(found, expected)
    weight = drawn(3, 7, WIDTH, seed=2)
    parameters = [*layer.parameters()]
    gradients = [torch.autograd.grad((each * weight).sum(), parameters) for each in (found, expected)]
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)
    assert sum(layer.load) + layer.dropped == top_k * 21
    assert max(layer.load) <= capacity
    assert factor in (None, 1.25) or layer.dropped > 0


def test_in_evaluation_an_output_depends_on_its_own_sample_alone() -> None:
    layer, x = mixture(2, 0.1).eval(), drawn(5, 7, WIDTH)
    torch.testing.assert_close(layer(x)[3:4], layer(x[3:4]))
    assert layer.dropped == 0


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    """Not a missing one, which optimizers would skip."""
    layer = mixture()
    layer(drawn(1, 1, WIDTH)).sum().backward()
    gradients = [parameter.grad for parameter in layer.experts.parameters()]
    assert sum(gradient is not None and bool(gradient.any()) for gradient in gradients) == 4
    assert all(gradient is not None for gradient in gradients)


def test_the_balance_loss_is_one_if_experts_are_used_alike_and_their_number_if_not() -> None:
    alike = torch.eye(EXPERTS).repeat(3, 1)
    assert balance_loss(alike).item() == pytest.approx(1)
    assert balance_loss(torch.eye(EXPERTS)[[2] * 5]).item() == pytest.approx(EXPERTS)


@pytest.mark.parametrize("weight", [0.3, 0.0])
def test_the_gradient_is_that_of_the_loss_and_the_weighted_balance_loss(weight: float) -> None:
    x, of = drawn(3, 7, WIDTH), drawn(3, 7, WIDTH, seed=2)
    layer, plain = mixture(balance=0.5), mixture()
    layer.router.weight = weight
    loss = weight * (layer(x) * of).sum()
    task = weight * (plain(x) * of).sum()
    torch.testing.assert_close(loss, task)  # it does not enter the loss that is reported
    loss.backward()
    probabilities = plain.router.scores(x.flatten(0, 1)).softmax(dim=-1)
    share = probabilities.argmax(dim=-1).bincount(minlength=EXPERTS) / 21
    (task + weight * 0.5 * EXPERTS * (share * probabilities.mean(dim=0)).sum()).backward()
    for mine, other in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
