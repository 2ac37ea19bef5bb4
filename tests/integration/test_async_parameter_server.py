"""Strategy async_parameter_server across real processes: staleness, its bound, and lost nodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.support.nightly import nightly
from tests.support.processes import node_processes
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
    result = run_cache.get(strategy=bounded(bound), nodes=4, epochs=8).result
    assert (result.status, result.cause) == ("ok", None)
    assert result.accuracy is not None
    assert result.accuracy > 0.8
    assert result.replicas_equal
    server, *workers = result.ranks
    assert (server.samples, server.staleness_mean, server.staleness_max) == (0, None, None)
    assert (
        server.steps == sum(worker.steps for worker in workers) == 3 * 8 * 3
    )  # 80 samples in batches of 32
    assert result.staleness is not None
    assert result.staleness_max is not None
    assert 0 < result.staleness <= result.staleness_max
    if bound is not None:
        assert result.staleness_max <= 2 * (2 * bound + 1)
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
    run = run_cache.get(strategy=bounded(bound), transport="rpc", nodes=2, **fields)
    assert run.result.status == "ok", run.result.cause
    _, worker = run.result.ranks
    assert (worker.staleness_mean, worker.staleness_max) == (0.0, 0)
    serial = run_cache.get(strategy="serial", **fields)
    np.testing.assert_allclose(run.weights, serial.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bound", [*nightly(None), 1])
def test_max_staleness_limits_the_staleness_of_a_stopped_worker(
    execute: Execute, bound: int | None
) -> None:
    result = execute(
        DuringTraining(stop_repeatedly, rank=2), strategy=bounded(bound), nodes=3, **SECONDS_OF_STEPS
    )
    assert (result.status, result.cause) == ("ok", None)
    _, other, stopped = result.ranks
    assert stopped.staleness_max is not None
    if bound is None:
        assert stopped.staleness_max > 8  # updates of the other worker while this one was stopped
    else:
        assert stopped.staleness_max <= 2 * bound + 1
        assert other.seconds["wait"] > 0.5 * STOPS * STOP_S
    for rank in result.ranks:
        assert rank.train_s == pytest.approx(
            sum(rank.seconds.values()) - rank.seconds["evaluate"], abs=1e-4
        )


@pytest.mark.parametrize(("doomed", "bound"), [(0, None), (2, 0)], ids=["server", "worker"])
def test_sigkill_of_the_server_or_a_worker(
    execute: Execute, tmp_path: Path, doomed: int, bound: int | None
) -> None:
    training = DuringTraining(lambda pid: os.kill(pid, signal.SIGKILL), doomed)
    result = execute(training, strategy=bounded(bound), nodes=3, **{**SECONDS_OF_STEPS, "epochs": 1000})
    assert result.status == "failed"
    assert str(result.cause).startswith(f"node {doomed} (process {training.pid})")
    assert "SIGKILL" in str(result.cause)
    assert result.started_at + result.wall_s - training.at < 10
    assert node_processes(tmp_path) == []
