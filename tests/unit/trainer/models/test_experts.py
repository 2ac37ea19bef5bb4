"""Mistakes in the mixture of experts: who gets which token, capacity, gates, balance, what is counted."""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training import train
from trainer.models.gpt import Gpt
from trainer.models.layers.experts import Experts, MixtureOfExperts, Router
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


def test_outputs_and_gradients_are_those_of_a_loop_over_tokens() -> None:
    for top_k, factor in product((1, 2), (None, 1.25, 0.7, 0.01)):
        layer, x = mixture(top_k, factor), drawn(3, 7, WIDTH)
        capacity = 1000 if factor is None else ceil(factor * top_k * 21 / EXPERTS)
        results = layer(x), by_a_loop(layer, x.flatten(0, 1), top_k, capacity).view_as(x)
        weight, parameters = drawn(3, 7, WIDTH, seed=2), [*layer.parameters()]
        found, expected = (
            [each, *torch.autograd.grad((each * weight).sum(), parameters)] for each in results
        )
        torch.testing.assert_close(found, expected)
        assert sum(layer.load) + layer.dropped == top_k * 21
        assert max(layer.load) <= capacity
        assert factor in (None, 1.25) or layer.dropped > 0


def test_an_output_depends_on_others_in_training_if_experts_are_limited_or_balanced() -> None:
    layer, x = mixture(2, 0.1).eval(), drawn(5, 7, WIDTH)
    torch.testing.assert_close(layer(x)[3:4], layer(x[3:4]))
    for factor, balance in product((1.25, None), (0.01, 0.0)):
        model = Gpt(experts=2, capacity_factor=factor, balance=balance)
        assert model.batch_statistics is (factor is not None or balance > 0)


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    """Not a missing one, which optimizers would skip."""
    layer = mixture()
    layer(drawn(1, 1, WIDTH)).sum().backward()
    found = [(each.grad is not None, bool(each.grad.any())) for each in layer.experts.parameters()]
    assert sorted(found) == [(True, False)] * 12 + [(True, True)] * 4


@pytest.mark.parametrize("weight", [0.3, 0.0])
def test_the_gradient_is_that_of_the_loss_and_the_weighted_balance_loss(weight: float) -> None:
    x, of = drawn(3, 7, WIDTH), drawn(3, 7, WIDTH, seed=2)
    layer, plain = mixture(balance=0.5), mixture()
    layer.router.weight = weight
    loss, task = (weight * (each(x) * of).sum() for each in (layer, plain))
    torch.testing.assert_close(loss, task)  # it does not enter the loss that is reported
    loss.backward()
    probabilities = plain.router.scores(x.flatten(0, 1)).softmax(dim=-1)
    share = probabilities.argmax(dim=-1).bincount(minlength=EXPERTS) / 21
    (task + weight * 0.5 * EXPERTS * (share * probabilities.mean(dim=0)).sum()).backward()
    found, expected = ([each.grad for each in of.parameters()] for of in (layer, plain))
    torch.testing.assert_close(found, expected)


# Choices that a run counts

TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 44, "test_samples": 20}
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "experts": 4, "capacity_factor": 0.8}
RUN: dict[str, Any] = {"model": GPT, "dataset": TOKENS, "batch_size": 8, "epochs": 1}
CHOICES = 2 * 44 * 12  # layers, samples, tokens


def counted(strategy: Any, ranks: int = 2, **fields: Any) -> tuple[int, int]:
    """Choices and dropped ones, of all ranks."""
    results = train(strategy, ranks, **{**RUN, **fields}).results
    made = sum(result.expert_choices or 0 for result in results)
    return made, sum(result.dropped_choices or 0 for result in results)


def test_a_run_counts_each_choice_of_training_once() -> None:
    made, dropped = counted("serial", 1)
    assert made == CHOICES
    assert 0.2 * made <= dropped < made
    assert counted("serial", 1, recompute="full") == (made, dropped)
    assert counted("serial", 1, model={**GPT, "capacity_factor": None, "top_k": 2}) == (2 * CHOICES, 0)
    plain = train("serial", 1, **{**RUN, "model": {"name": "gpt"}}).results[0]
    assert (plain.expert_choices, plain.dropped_choices) == (None, None)


def test_ranks_count_the_choices_of_their_own_tokens() -> None:
    """Parts differ in size, and a rank without samples left takes part with weight 0."""
    uneven = {"partitioner": {"name": "quantity", "imbalance": 0.4}}
    whole, divided = (counted(each, 3, **uneven) for each in ("all_reduce", "expert_parallel"))
    assert (whole[0], divided) == (CHOICES, whole)
    stages = {"name": "pipeline", "split_points": ["block2"], "micro_batches": 4}
    for strategy, copies in ((stages, 1), ("context_parallel", 1), ("tensor_parallel", 2)):
        assert counted(strategy)[0] == copies * CHOICES  # in tensor_parallel, both ranks have all tokens
