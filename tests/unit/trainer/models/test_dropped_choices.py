"""Mistakes in the share of dropped choices that a run reports: choices that count twice, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.training import train

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
    two = {**GPT, "capacity_factor": None, "top_k": 2}
    assert counted("serial", 1, model=two, epochs=2) == (4 * CHOICES, 0)
    plain = {"name": "gpt", "layers": 1, "width": 16, "heads": 4}
    without = train("serial", 1, **{**RUN, "model": plain}).results[0]
    assert (without.expert_choices, without.dropped_choices) == (None, None)


def test_expert_parallel_counts_as_all_reduce_does() -> None:
    """Parts differ in size, and a rank without samples left takes part with weight 0."""
    uneven = {"partitioner": {"name": "quantity", "imbalance": 0.4}}
    whole = counted("all_reduce", 3, **uneven)
    assert whole[0] == CHOICES
    assert counted("expert_parallel", 3, **uneven) == whole


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
    assert counted(strategy)[0] == copies * CHOICES
