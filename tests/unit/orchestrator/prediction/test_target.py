"""Mistakes in the epochs to a target accuracy: which runs of virtual nodes count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orchestrator.prediction.target import learned_by
from orchestrator.results.records import RunResult
from trainer.spec.run_spec import RunSpec

MEASURED = RunSpec.model_validate({"strategy": "local_sgd", "nodes": 2, "transport": "gloo", "epochs": 3})


def virtual(nodes: int, target: float, last_epoch: int, reached: bool = True, **fields: Any) -> RunResult:
    """A run of the configuration on virtual nodes."""
    known = MEASURED.model_dump(mode="json", exclude_defaults=True)
    run = RunSpec.model_validate(
        {**known, "nodes": nodes, "epochs": 50, "target_accuracy": target, "patience": 2, **fields}
    )
    epochs = [SimpleNamespace(target_reached=reached)]
    return cast("RunResult", SimpleNamespace(run=run, last_epoch=last_epoch, epochs=epochs))


def test_epochs_come_from_runs_on_as_many_nodes_with_the_same_configuration() -> None:
    results = [
        virtual(8, 0.9, 7, seed=1, transport="mpi"),
        virtual(8, 0.9, 5, seed=2, link={"latency_ms": 5.0}),
        virtual(8, 0.9, 50, reached=False, seed=3),
        virtual(16, 0.9, 9),
        virtual(8, 0.9, 3, lr=0.5),
    ]
    found = learned_by(results, MEASURED, 8)
    assert found is not None
    assert (found.accuracy, found.epochs, found.runs) == (0.9, [5, 7], 3)


def test_of_several_targets_the_highest_counts() -> None:
    found = learned_by([virtual(8, 0.8, 2), virtual(8, 0.95, 9)], MEASURED, 8)
    assert found is not None
    assert (found.accuracy, found.epochs) == (0.95, [9])


def test_other_nodes_and_runs_without_a_target_show_nothing() -> None:
    assert learned_by([virtual(16, 0.9, 9)], MEASURED, 8) is None
    assert learned_by([], MEASURED, 8) is None
