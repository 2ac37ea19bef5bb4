"""Learning-rate schedule and target accuracy where a library takes the steps or ranks step alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.support.runs import SMALL, RunCache
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task


@pytest.fixture
def trained(run_cache: RunCache) -> Callable[..., tuple[RunResult, np.ndarray]]:
    def trained(strategy: Any, **fields: Any) -> tuple[RunResult, np.ndarray]:
        run = run_cache.get(strategy=strategy, **fields)
        assert (run.result.status, run.result.cause) == ("ok", None)
        return run.result, run.weights

    return trained


@pytest.mark.parametrize("optimizer", ["momentum", "textbook_adam"])
def test_library_strategies_apply_the_schedule(
    trained: Callable[..., tuple[RunResult, np.ndarray]], optimizer: str
) -> None:
    run = {"nodes": 2, "optimizer": optimizer, "lr": 0.02}
    schedule = {"lr_scaling": "linear", "warm_up_epochs": 1}
    _, expected = trained("all_reduce", transport="memory", **run, **schedule)
    _, constant = trained("all_reduce", transport="memory", **run)
    assert not np.allclose(expected, constant, rtol=1e-4, atol=1e-5)
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        result, weights = trained(strategy, transport="gloo", **run, **schedule)
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
        assert [point.lr for point in result.epochs if point.rank == 0] == [0.02, 0.04]


@pytest.mark.parametrize(("strategy", "nodes"), [("async_parameter_server", 3), ("hogwild", 2)])
def test_strategies_whose_ranks_step_alone_apply_the_schedule(
    trained: Callable[..., tuple[RunResult, np.ndarray]], strategy: str, nodes: int
) -> None:
    """At so small a rate, gradients hardly depend on the order of updates."""
    run = {"nodes": nodes, "epochs": 1, "lr": 1e-4}
    start = _first_weights()
    moved = [
        np.linalg.norm(trained(strategy, **run, lr_scaling=scaling)[1] - start)
        for scaling in ("none", "linear")
    ]
    assert moved[1] / moved[0] == pytest.approx(2, rel=0.02)


def _first_weights() -> np.ndarray:
    model = Task(RunSpec.model_validate({**SMALL, "strategy": "serial"}), Path()).build_model(0)
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        ("ddp", {"nodes": 2}),
        ("fsdp", {"nodes": 2}),
        ("pipeline_torch", {"nodes": 2}),
        ("rpc_split", {"nodes": 3}),
        ("async_parameter_server", {"nodes": 3}),
        ("local_sgd", {"nodes": 2, "transport": "mpi"}),
    ],
)
def test_all_ranks_stop_after_the_epoch_that_reaches_the_target(
    trained: Callable[..., tuple[RunResult, np.ndarray]], strategy: str, fields: dict[str, Any]
) -> None:
    result, _ = trained(strategy, target_accuracy=0.001, patience=2, epochs=4, **fields)
    assert [(p.epoch, p.target_reached) for p in result.epochs] == [(1, False), (2, True)] * len(
        result.ranks
    )
    assert result.certificate is not None
    assert [split.epoch for split in result.certificate.splits] == [1, 2]
    assert json.loads(result.model_dump_json())["epochs"][1]["target_reached"]
