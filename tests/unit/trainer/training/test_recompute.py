"""Recomputation: the weights of training without it, bit for bit, with fewer stored activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.training import SMALL, Training, train
from trainer.spec.run_spec import RunSpec
from trainer.training.memory import Activations
from trainer.training.recompute import recompute_in_backward

TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 57, "test_samples": 20}
GPT = {"name": "gpt", "layers": 4, "width": 32, "heads": 4, "dropout": 0.2}
ON_TOKENS: dict[str, Any] = {
    "model": GPT,
    "dataset": TOKENS,
    "batch_size": 9,
    "optimizer": "adam",
    "lr": 0.002,
}
IMAGES = {**SMALL["dataset"], "height": 12, "width": 12}  # type: ignore[dict-item]
ON_IMAGES: dict[str, Any] = {"model": {"name": "wide_resnet", "widen": 1}, "dataset": IMAGES}
PIPELINE = {"name": "pipeline", "split_points": ["block3"], "schedule": "1f1b"}
INTERLEAVED = {
    "name": "pipeline",
    "split_points": ["block2", "block3", "block4"],
    "schedule": "interleaved",
}


def stored(training: Training) -> list[int]:
    return [result.activation_bytes or 0 for result in training.results]


@pytest.mark.parametrize(
    ("strategy", "ranks", "fields", "largest"),
    [
        ("serial", 1, ON_TOKENS, 0.4),
        ("serial", 1, ON_IMAGES, 0.5),  # with running statistics
        ("all_reduce", 2, ON_TOKENS, 0.4),
        ("local_sgd", 2, ON_IMAGES, 0.5),  # with batches of weight 0
        (PIPELINE, 2, ON_TOKENS, 0.5),
        (PIPELINE, 2, {**ON_TOKENS, "model": {**GPT, "experts": 3}}, 0.5),  # in unequal micro-batches
        (INTERLEAVED, 2, ON_TOKENS, 0.5),
    ],
    ids=str,
)
def test_full_recomputation_changes_no_weight(
    strategy: Any, ranks: int, fields: dict[str, Any], largest: float
) -> None:
    """Dropout included."""
    plain, again = train(strategy, ranks, **fields), train(strategy, ranks, recompute="full", **fields)
    np.testing.assert_array_equal(again.weights, plain.weights)
    shares = [mine / other for mine, other in zip(stored(again), stored(plain), strict=True)]
    assert max(shares) < largest


@pytest.mark.parametrize(("strategy", "ranks"), [("serial", 1), ("tensor_parallel", 2)])
def test_selective_recomputation_changes_no_weight(strategy: str, ranks: int) -> None:
    fields = {**ON_TOKENS, "model": {**GPT, "positions": "rope"}}
    plain, again = train(strategy, ranks, **fields), train(strategy, ranks, recompute="selective", **fields)
    np.testing.assert_array_equal(again.weights, plain.weights)
    shares = [mine / other for mine, other in zip(stored(again), stored(plain), strict=True)]
    assert max(shares) < 0.93  # without the rotated queries and keys


def test_running_statistics_are_updated_once() -> None:
    def trained(which: Any) -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()))
        recompute_in_backward(model, which)
        model(torch.randn(4, 1, 5, 5)).sum().backward()
        return model

    plain, again = trained("none"), trained("full")
    assert again[0][1].num_batches_tracked == 1
    for mine, other in zip(again.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_the_repeated_pass_counts_among_the_activations() -> None:
    """The input of each block, and what one of them stores while it runs again."""
    blocks = [nn.Sequential(nn.Linear(8, 100), nn.Tanh(), nn.Linear(100, 8)) for _ in range(5)]
    model = nn.Sequential(*blocks)
    recompute_in_backward(model, "full")
    with Activations() as activations:
        model(torch.randn(10, 8)).sum().backward()
    assert activations.peak_bytes == 4 * 10 * (5 * 8 + 100)


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        (
            {"strategy": "tensor_parallel", "recompute": "full"},
            ["tensor_parallel", "allowed: none, selective"],
        ),
        ({"strategy": "context_parallel", "recompute": "selective"}, ["context_parallel", "allowed: none"]),
        (
            {"strategy": "expert_parallel", "recompute": "full", "model": {**GPT, "experts": 3}},
            ["expert_parallel", "allowed: none, selective"],
        ),
        ({"strategy": "rpc_split", "recompute": "full"}, ["rpc_split", "threads"]),
        (
            {"strategy": {"name": "pipeline", "schedule": "zero_bubble"}, "recompute": "full"},
            ["pipeline", "zero_bubble", "allowed: none"],
        ),
        (
            {"strategy": "all_reduce", "model": "lenet", "dataset": "digits", "recompute": "selective"},
            ["lenet has no attention", "allowed: none, full"],
        ),
        (
            {
                "strategy": "all_reduce",
                "model": {"name": "wide_resnet", "norm": "sync_batch"},
                "dataset": "digits",
                "recompute": "full",
            },
            ["wide_resnet", "sync_batch", "allowed: none"],
        ),
    ],
    ids=str,
)
def test_what_cannot_run_again_is_refused(fields: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**SMALL, **ON_TOKENS, "nodes": 2, **fields})
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []
