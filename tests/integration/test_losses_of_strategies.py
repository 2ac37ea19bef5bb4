"""Wherever a strategy computes the loss, it is that of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.runs import RunCache

RUN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 96, "test_samples": 32, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [16, 16]},
    "batch_size": 16,
    "lr": 0.02,
    "epochs": 2,
}
SMOOTH = {"name": "cross_entropy", "label_smoothing": 0.3}


@pytest.mark.parametrize(
    ("strategy", "nodes", "transport"),
    [
        ("pipeline", 2, "gloo"),
        ("pipeline_torch", 2, "gloo"),
        ("tensor_parallel", 2, "gloo"),
        ("rpc_split", 3, "rpc"),
    ],
)
def test_a_split_model_is_trained_with_the_loss_of_the_run(
    run_cache: RunCache, strategy: str, nodes: int, transport: str
) -> None:
    serial, plain = (run_cache.get(strategy="serial", loss=loss, **RUN) for loss in (SMOOTH, "nll"))
    split = run_cache.get(strategy=strategy, nodes=nodes, transport=transport, loss=SMOOTH, **RUN)
    assert (split.result.status, split.result.cause) == ("ok", None)
    np.testing.assert_allclose(split.weights, serial.weights, rtol=1e-3, atol=1e-5)
    assert not np.allclose(plain.weights, serial.weights, rtol=1e-3, atol=1e-5)
    losses = [run.result.epochs[-1].test_loss for run in (serial, split)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
