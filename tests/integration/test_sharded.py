"""Mistakes of zero1, zero2 and fsdp: the weights of all_reduce, less memory, and their traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.support.runs import RunCache

STAGE_2 = {"name": "fsdp", "reshard": False}


def state_bytes(result: RunResult, what: str) -> list[int]:
    """Bytes of weights, gradient or optimizer on each rank."""
    return [rank.state_bytes[what] for rank in result.ranks if rank.state_bytes]


def trained(cache: RunCache, strategy: Any, **fields: Any) -> tuple[RunResult, np.ndarray]:
    """A run's result and final weights. With 241 samples a last batch has one sample."""
    # Evaluation takes one rank two forward passes and the other rank one.
    data = {"name": "synthetic", "samples": 241, "test_samples": 2001}
    common = {"dataset": data, "batch_size": 16, "lr": 0.02, "transport": "gloo"}
    run = cache.ok(strategy=strategy, **common, **fields)
    return run.result, run.weights


def test_two_ranks_hold_half_of_the_state_each(run_cache: RunCache) -> None:
    run = {"nodes": 2, "optimizer": "momentum"}
    plain, expected = trained(run_cache, "all_reduce", **run)
    whole = state_bytes(plain, "weights")[0]
    assert state_bytes(plain, "optimizer") == [whole, whole]
    for strategy, sent in (("zero1", 3), ("zero2", 2), ("zero3", 3), ("fsdp", 3), (STAGE_2, 2)):
        result, weights = trained(run_cache, strategy, **run)
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)
        assert result.replicas_equal
        assert result.accuracy == plain.accuracy
        # Per step, sum of both ranks; an all-reduce is 2. The rows divide evenly, so there is no padding.
        steps = result.ranks[0].steps
        assert sum(rank.bytes_sent for rank in result.ranks) == sent * whole * steps
        assert sum(state_bytes(result, "optimizer")) == whole
        if strategy == "zero1":  # the weights of the first layer are one tensor with one owner
            layer = 4 * 28 * 28 * 16
            assert state_bytes(result, "weights") == state_bytes(result, "gradient") == [whole, whole]
            assert state_bytes(result, "optimizer") == [layer, whole - layer]
        else:
            for what in ("gradient", "optimizer"):
                assert state_bytes(result, what) == [whole / 2, whole / 2]
            held = whole if strategy == "zero2" else whole / 2
            assert state_bytes(result, "weights") == [held, held]


def test_three_ranks_hold_about_a_third_of_the_state_each(run_cache: RunCache) -> None:
    run = {"nodes": 3, "optimizer": "adam", "model": {"name": "lenet"}}
    plain, expected = trained(run_cache, "all_reduce", **run)
    zero1, weights = trained(run_cache, "zero1", **run)
    # Adam amplifies small gradients with their rounding errors; a step is 0.02.
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert sum(state_bytes(zero1, "optimizer")) == state_bytes(plain, "optimizer")[0]
    steps, whole = zero1.ranks[0].steps, state_bytes(plain, "weights")[0]
    assert sum(rank.bytes_sent for rank in zero1.ranks) == pytest.approx(3 * 2 * whole * steps)

    fsdp, weights = trained(run_cache, "fsdp", **run)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert fsdp.replicas_equal
    for what in ("weights", "gradient", "optimizer"):
        whole = state_bytes(plain, what)[0]
        # Ten output rows over three ranks are 4, 4 and 2.
        assert all(0.3 * whole < part < 0.35 * whole for part in state_bytes(fsdp, what)), what
        assert sum(state_bytes(fsdp, what)) >= whole


def test_a_rank_without_test_samples_takes_part_in_evaluation(run_cache: RunCache) -> None:
    """It gathers the weights of the others, and calls no model: gpt takes no batch of none."""
    data = {"name": "copy", "samples": 40, "test_samples": 1}
    model = {"name": "gpt", "layers": 1, "width": 16, "heads": 2}
    common = {"dataset": data, "model": model, "lr": 0.02, "nodes": 2, "transport": "gloo"}
    expected = run_cache.get(strategy="all_reduce", **common).result
    for strategy in ("ddp", "zero1", "fsdp", STAGE_2):
        result = run_cache.ok(strategy=strategy, **common).result
        assert result.epochs[-1].test_loss == pytest.approx(expected.epochs[-1].test_loss, rel=1e-4)
