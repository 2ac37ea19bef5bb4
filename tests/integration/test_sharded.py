"""Strategies of which a rank holds a part: the same weights as all-reduce, less to hold, other bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult

Execute = Callable[..., RunResult]

STAGE_2 = {"name": "fsdp", "reshard": False}


def held(result: RunResult, what: str) -> list[int]:
    """Bytes on each rank."""
    return [rank.state_bytes[what] for rank in result.ranks if rank.state_bytes]


@pytest.fixture
def trained(execute: Execute, tmp_path: Path) -> Callable[..., tuple[RunResult, np.ndarray]]:
    """A run and its final weights. Of 241 samples parts differ, and a last batch may be of one sample."""

    def trained(strategy: Any, **fields: Any) -> tuple[RunResult, np.ndarray]:
        # The whole test split takes one rank two forward passes and the other one.
        data = {"name": "synthetic", "samples": 241, "test_samples": 2001}
        common = {"dataset": data, "batch_size": 16, "lr": 0.02, "transport": "gloo"}
        result = execute(strategy=strategy, save_weights=True, **common, **fields)
        assert (result.status, result.cause) == ("ok", None)
        return result, np.load(tmp_path / "results" / result.key / "weights.npy")

    return trained


def test_two_ranks_hold_half_each(trained: Callable[..., tuple[RunResult, np.ndarray]]) -> None:
    run = {"nodes": 2, "optimizer": "momentum"}
    plain, expected = trained("all_reduce", **run)
    whole = held(plain, "weights")[0]
    assert held(plain, "optimizer") == [whole, whole]
    for strategy, sent in (("zero1", 3), ("fsdp", 3), (STAGE_2, 2)):
        result, weights = trained(strategy, **run)
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)
        assert result.replicas_equal
        assert result.accuracy == plain.accuracy
        # In a step and in sum over both ranks; an all-reduce is 2. Its rows are even: nothing is filled up.
        steps = result.ranks[0].steps
        assert sum(rank.bytes_sent for rank in result.ranks) == sent * whole * steps
        assert sum(held(result, "optimizer")) == whole
        if strategy == "zero1":  # the weights of the first layer are one tensor, and have one owner
            layer = 4 * 28 * 28 * 16
            assert held(result, "weights") == held(result, "gradient") == [whole, whole]
            assert held(result, "optimizer") == [layer, whole - layer]
        else:
            for what in ("weights", "gradient", "optimizer"):
                assert held(result, what) == [whole / 2, whole / 2]


def test_three_ranks_hold_about_a_third_each(
    trained: Callable[..., tuple[RunResult, np.ndarray]],
) -> None:
    run = {"nodes": 3, "optimizer": "adam", "model": {"name": "lenet"}}
    plain, expected = trained("all_reduce", **run)
    zero1, weights = trained("zero1", **run)
    # Adam divides small gradients by their size, rounding errors too; a step is 0.02.
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert sum(held(zero1, "optimizer")) == held(plain, "optimizer")[0]
    steps, whole = zero1.ranks[0].steps, held(plain, "weights")[0]
    assert sum(rank.bytes_sent for rank in zero1.ranks) == pytest.approx(3 * 2 * whole * steps)

    fsdp, weights = trained("fsdp", **run)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert fsdp.replicas_equal
    for what in ("weights", "gradient", "optimizer"):
        whole = held(plain, what)[0]
        # Ten output rows over three ranks are 4, 4 and 2.
        assert all(0.3 * whole < part < 0.35 * whole for part in held(fsdp, what)), what
        assert sum(held(fsdp, what)) >= whole
