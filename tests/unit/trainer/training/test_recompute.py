"""Mistakes in recomputation: a weight, mask, statistic or count that changes, memory that is not saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.training import train
from trainer.spec.run_spec import RunSpec
from trainer.training.memory import Activations
from trainer.training.recompute import recompute_in_backward

GPT = {"name": "gpt", "layers": 4, "width": 32, "heads": 4, "dropout": 0.2}
TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 21, "test_samples": 8}
ADAM: dict[str, Any] = {"batch_size": 9, "optimizer": "adam", "lr": 0.002, "epochs": 1}
ON_TOKENS: dict[str, Any] = {"model": GPT, "dataset": TOKENS, **ADAM}
EXPERTS: dict[str, Any] = {**ON_TOKENS, "model": {**GPT, "experts": 3}}
ROTATED: dict[str, Any] = {**ON_TOKENS, "model": {**GPT, "positions": "rope"}}
CUTS = ["block2", "block3", "block4"]
INTERLEAVED = {"name": "pipeline", "split_points": CUTS, "schedule": "interleaved"}


@pytest.mark.parametrize(
    ("which", "strategy", "ranks", "fields", "largest"),
    [
        pytest.param("full", "serial", 1, ON_TOKENS, 0.4, id="dropout"),
        pytest.param("full", INTERLEAVED, 2, EXPERTS, 0.55, id="unequal micro-batches of chunks"),
        # Without the rotated queries and keys:
        pytest.param("selective", "tensor_parallel", 2, ROTATED, 0.93, id="selective on a split"),
    ],
)
def test_recomputation_changes_no_weight(
    which: str, strategy: Any, ranks: int, fields: dict[str, Any], largest: float
) -> None:
    plain, again = (train(strategy, ranks, recompute=each, **fields) for each in ("none", which))
    np.testing.assert_array_equal(again.weights, plain.weights)
    for mine, other in zip(again.results, plain.results, strict=True):
        assert (mine.activation_bytes or 0) < largest * (other.activation_bytes or 0)


def test_running_statistics_are_updated_once() -> None:
    def trained(which: Any) -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()))
        recompute_in_backward(model, which)
        model(torch.randn(4, 1, 5, 5)).sum().backward()
        return model

    plain, again = trained("none"), trained("full")
    assert again[0][1].momentum == plain[0][1].momentum
    for mine, other in zip(again.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine, other)


def test_the_repeated_pass_counts_among_the_activations() -> None:
    """The input of each block, and what one of them stores while it runs again.

    Blocks without weights store their output, which is the input of the next.
    """
    blocks = [nn.Sequential(nn.Linear(8, 100), nn.Tanh(), nn.Linear(100, 8)) for _ in range(5)]
    model = nn.Sequential(nn.Flatten(), *blocks)
    recompute_in_backward(model, "full")
    with Activations() as activations:
        model(torch.randn(10, 8)).sum().backward()
    assert activations.peak_bytes == 4 * 10 * (5 * 8 + 100)


SYNCHRONISED = {"name": "wide_resnet", "norm": "sync_batch"}


@pytest.mark.parametrize(
    ("which", "fields", "facts"),
    [
        ("full", {"strategy": "tensor_parallel"}, ["tensor_parallel", "allowed: none, selective"]),
        ("selective", {"strategy": "context_parallel"}, ["context_parallel", "allowed: none"]),
        ("full", {**EXPERTS, "strategy": "expert_parallel"}, ["expert_parallel", ": none, selective"]),
        ("full", {"strategy": "rpc_split"}, ["rpc_split", "threads"]),
        ("full", {"strategy": {"name": "pipeline", "schedule": "zero_bubble"}}, ["zero_bubble", ": none"]),
        ("selective", {"model": "lenet", "dataset": "digits"}, ["lenet has no attention", "none, full"]),
        ("full", {"model": SYNCHRONISED, "dataset": "digits"}, ["wide_resnet", "sync_batch", ": none"]),
    ],
)
def test_what_cannot_run_again_is_refused(which: str, fields: dict[str, Any], facts: list[str]) -> None:
    run = {**ON_TOKENS, "nodes": 2, "strategy": "all_reduce", "recompute": which, **fields}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(run)
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []
