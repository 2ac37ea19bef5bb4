"""Mistakes of async_parameter_server across real processes: staleness and its bound."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.support.nightly import nightly
from tests.support.runs import DuringTraining, RunCache

Execute = Callable[..., RunResult]
# Runs for some seconds.
SECONDS_OF_STEPS = {
    "dataset": {"name": "synthetic", "samples": 4000, "test_samples": 64, "noise": 1.0},
    "batch_size": 2,
    "lr": 0.01,
    "epochs": 1,
}
STOPS, STOP_S = 15, 0.1


def bounded(max_staleness: int | None) -> dict[str, Any]:
    return {"name": "async_parameter_server", "max_staleness": max_staleness}


def stop_repeatedly(pid: int) -> None:
    """SIGSTOP a process several times. Only a stop between pull and push makes its gradient stale."""
    for _ in range(STOPS):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOP_S)
        os.kill(pid, signal.SIGCONT)
        time.sleep(STOP_S / 2)


@pytest.mark.parametrize("bound", [None, *nightly(0)])
def test_training_learns_and_reports_staleness(run_cache: RunCache, bound: int | None) -> None:
    result = run_cache.ok(strategy=bounded(bound), nodes=4, epochs=8).result
    assert (result.accuracy or 0) > 0.8
    assert result.replicas_equal
    server, *workers = result.ranks
    assert (server.samples, server.staleness_mean, server.staleness_max) == (0, None, None)
    # 80 samples in batches of 32
    assert server.steps == sum(worker.steps for worker in workers) == 3 * 8 * 3
    most = result.staleness_max or 0
    assert 0 < (result.staleness or 0) <= most
    assert bound is None or most <= 2 * (2 * bound + 1)
    # In each step a worker sends a gradient and receives the weights.
    n = 4 * server.parameters
    assert [worker.bytes_sent for worker in workers] == [n * worker.steps for worker in workers]
    assert server.bytes_sent == n * server.steps
    assert [point.loss for point in result.epochs if point.rank == 0] == [None] * 8


# With dropout, and with statistics that no gradient carries.
@pytest.mark.parametrize(
    ("bound", "optimizer", "model"),
    [(None, "adam", {"name": "lenet"}), (0, "sgd", {"name": "wide_resnet", "widen": 1})],
    ids=["unbounded-lenet-adam", "bounded-wide_resnet-sgd"],
)
def test_single_worker_equals_serial_and_is_never_stale(
    run_cache: RunCache, bound: int | None, optimizer: str, model: dict[str, Any]
) -> None:
    fields = {"model": model, "optimizer": optimizer, "lr": 0.01}
    run = run_cache.ok(strategy=bounded(bound), transport="rpc", nodes=2, **fields)
    _, worker = run.result.ranks
    assert (worker.staleness_mean, worker.staleness_max) == (0.0, 0)
    serial = run_cache.get(strategy="serial", **fields)
    np.testing.assert_allclose(run.weights, serial.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bound", [*nightly(None), 1])
def test_max_staleness_limits_the_staleness_of_a_stopped_worker(
    execute: Execute, bound: int | None
) -> None:
    display = DuringTraining(stop_repeatedly, rank=2)
    result = execute(display, strategy=bounded(bound), nodes=3, **SECONDS_OF_STEPS)
    assert (result.status, result.cause) == ("ok", None)
    _, other, stopped = result.ranks
    assert stopped.staleness_max is not None
    if bound is None:
        assert stopped.staleness_max > 8  # updates of the other worker while this one was stopped
    else:
        assert stopped.staleness_max <= 2 * bound + 1
        assert other.seconds["wait"] > 0.5 * STOPS * STOP_S
