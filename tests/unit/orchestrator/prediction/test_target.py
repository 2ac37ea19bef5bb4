"""Mistakes in the epochs to a target accuracy: which runs of virtual nodes count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orchestrator.prediction.target import Learned, learned_by
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec

MEASURED = RunSpec.model_validate({"strategy": "local_sgd", "nodes": 2, "transport": "gloo", "epochs": 3})


def virtual(nodes: int, target: float, last_epoch: int, reached: bool = True, **fields: Any) -> RunResult:
    """A run of the configuration on virtual nodes."""
    known = MEASURED.model_dump(mode="json", exclude_defaults=True)
    own = {"nodes": nodes, "epochs": 50, "target_accuracy": target, "patience": 2, **fields}
    epochs = [SimpleNamespace(target_reached=reached)]
    run = RunSpec.model_validate({**known, **own})
    return cast("RunResult", SimpleNamespace(run=run, last_epoch=last_epoch, epochs=epochs))


def test_epochs_come_from_runs_on_as_many_nodes_with_the_same_configuration_and_the_highest_target() -> (
    None
):
    results = [
        virtual(8, 0.9, 7, seed=1, transport="mpi"),
        virtual(8, 0.9, 5, seed=2, link={"latency_ms": 5.0}),
        virtual(8, 0.9, 50, reached=False, seed=3),
        virtual(8, 0.8, 2),
        virtual(16, 0.95, 9),
        virtual(8, 0.95, 3, lr=0.5),
    ]
    assert learned_by(results, MEASURED, 8) == Learned(0.9, [5, 7], runs=3)
    assert learned_by(results, MEASURED, 16) == Learned(0.95, [9], runs=1)
    assert learned_by(results, MEASURED, 4) is None
