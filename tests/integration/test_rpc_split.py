"""Mistakes of rpc_split across real processes: weights, its result row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.support.nightly import nightly
from tests.support.runs import RunCache

LENET: dict[str, Any] = {"model": {"name": "lenet"}, "optimizer": "momentum", "lr": 0.02}


def split(split_points: list[str] | None = None) -> dict[str, Any]:
    return {"name": "rpc_split", "split_points": split_points}


@pytest.mark.parametrize(
    ("split_points", "optimizer", "nodes"),
    [
        (["pool1", "relu1", "conv2"], "adam", 5),  # uneven; two stages without weights
        *nightly(
            (None, "momentum", 3),
            (["conv2", "log_softmax"], "adamw", 4),  # the last stage has no weights
            ([], "sgd", 2),
        ),
    ],
)
def test_rpc_split_equals_serial(
    run_cache: RunCache, split_points: list[str] | None, optimizer: str, nodes: int
) -> None:
    # 240 samples in batches of 11, the last of 9. With dropout.
    fields = {"model": "lenet", "batch_size": 11, "lr": 0.01, "optimizer": optimizer}
    serial = run_cache.ok(strategy="serial", **fields)
    found = run_cache.ok(strategy=split(split_points), nodes=nodes, **fields)
    losses, expected = (
        [point.loss for point in run.result.epochs if point.rank == 0] for run in (found, serial)
    )
    assert losses == pytest.approx(expected, rel=1e-4)
    # Gradients have another memory layout, and Adam magnifies rounding differences.
    np.testing.assert_allclose(found.weights, serial.weights, rtol=1e-3, atol=2e-5)


def test_result_of_a_run(run_cache: RunCache) -> None:
    alone = run_cache.get(strategy="serial", **LENET).result
    run = run_cache.ok(strategy=split(), nodes=3, **LENET)
    result = run.result
    assert result.topology == "rpc"
    assert result.accuracy == alone.accuracy
    master, convolutions, classifier = result.ranks
    (serial,) = alone.ranks
    assert master.weights_digest == serial.weights_digest
    assert (convolutions.weights_digest, classifier.weights_digest) == (None, None)

    assert [rank.samples for rank in result.ranks] == [480, 0, 0]
    assert [rank.steps for rank in result.ranks] == [16] * 3
    assert master.blocks == []
    assert (convolutions.blocks or [])[-1] == "pool3"
    assert (classifier.blocks or [])[0] == "flatten"
    assert [rank.parameters for rank in result.ranks] == [0, 7790, 7870]
    assert serial.state_bytes is not None
    for what, size in serial.state_bytes.items():
        assert sum((rank.state_bytes or {})[what] for rank in result.ranks) == size
    assert serial.activation_bytes is not None
    saved = [rank.activation_bytes or 0 for rank in result.ranks]
    assert min(saved) > 0
    # Two stages save the activations between them; only the master saves the loss.
    assert serial.activation_bytes <= sum(saved) <= 1.02 * serial.activation_bytes

    # 480 samples: 28 × 28 pixels to the first stage, 120 activations between stages, 10 outputs; and back.
    images, between, out = (4 * 480 * values for values in (28 * 28, 120, 10))
    assert master.bytes_to == [0, images, out]
    assert convolutions.bytes_to == [0, 0, between]
    assert classifier.bytes_to == [out, between, 0]
    assert [rank.bytes_sent for rank in result.ranks] == [images + out, between, out + between]

    # The stages together do the work of serial; forward passes alone are about a third of it.
    assert serial.work_cpu_s is not None
    stages = sum(rank.work_cpu_s or 0 for rank in (convolutions, classifier))
    assert 0.5 * serial.work_cpu_s < stages < 4 * serial.work_cpu_s
    assert convolutions.seconds["compute"] > classifier.seconds["compute"]
    for rank in result.ranks:
        assert rank.seconds["communicate"] > 0
        assert rank.seconds["wait"] > 0
    assert master.seconds["wait"] > 0.5 * master.train_s
    lines = "".join(run.log(f"node-{node}") for node in range(3)).splitlines()
    assert [line for line in lines if not re.match(r"node-\d \| ", line)] == []  # none of torch
