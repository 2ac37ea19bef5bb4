"""The share of dropped choices that runs report, with strategies that divide tokens and experts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.training import Training, train

TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 44, "test_samples": 20}
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "experts": 4, "capacity_factor": 0.8}
RUN: dict[str, Any] = {"model": GPT, "dataset": TOKENS, "batch_size": 8, "epochs": 2}
CHOICES = 2 * 2 * 44 * 12  # epochs, layers, samples, tokens


def counted(training: Training) -> tuple[int, int]:
    results = training.results
    made = sum(result.expert_choices or 0 for result in results)
    return made, sum(result.dropped_choices or 0 for result in results)


def test_a_run_counts_each_choice_of_training_once() -> None:
    made, dropped = counted(train("serial", 1, **RUN))
    assert made == CHOICES
    assert 0.2 * made <= dropped < made
    assert counted(train("serial", 1, **RUN, recompute="full")) == (made, dropped)
    model = {**GPT, "capacity_factor": None, "top_k": 2}
    assert counted(train("serial", 1, **{**RUN, "model": model})) == (2 * CHOICES, 0)
    without = train(
        "serial", 1, **{**RUN, "model": {**GPT, "experts": 0, "capacity_factor": 1.25}}
    ).results[0]
    assert (without.expert_choices, without.dropped_choices) == (None, None)


@pytest.mark.parametrize("ranks", [2, 3])
def test_expert_parallel_counts_as_all_reduce_does(ranks: int) -> None:
    """Parts differ in size, and a rank without samples left takes part with weight 0."""
    run = {**RUN, "partitioner": {"name": "quantity", "imbalance": 0.4}}
    whole, divided = (train(name, ranks, **run) for name in ("all_reduce", "expert_parallel"))
    assert counted(divided) == counted(whole)
    assert counted(whole)[0] == CHOICES


@pytest.mark.parametrize(
    ("strategy", "copies"),
    [
        ({"name": "pipeline", "split_points": ["block2"], "micro_batches": 4}, 1),
        ("context_parallel", 1),
        ("tensor_parallel", 2),  # both ranks have all tokens
    ],
    ids=str,
)
def test_stages_and_parts_of_samples_add_up(strategy: Any, copies: int) -> None:
    assert counted(train(strategy, 2, **RUN))[0] == copies * CHOICES
