"""Optimisers by hand in the report: which runs are twins, and whether their loss curves are the same."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report import formats
from orchestrator.report.figures import draw
from orchestrator.report.findings import find
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.textbook_optimizers import twins_of
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run
from trainer.spec.registries import OPTIMIZERS


def trained(optimizer: Any, *losses: float, **fields: Any) -> RunResult:
    """A serial run with these losses after its epochs."""
    run = a_run(optimizer=optimizer, **fields)
    points = [point.model_copy(update={"test_loss": losses[point.epoch - 1]}) for point in run.epochs]
    return run.model_copy(update={"epochs": points})


def said(*runs: RunResult) -> list[Finding]:
    return [finding for finding in find(a_comparison(*runs)) if finding.topic == "By hand"]


def test_the_same_curve_is_told_with_its_difference_and_its_price() -> None:
    (told,) = said(
        trained("adam", 0.5, 0.25, train_s=4.0), trained("textbook_adam", 0.5, 0.250001, train_s=6.0)
    )
    assert told.kind == "finding"
    assert told.text.replace(formats.JOIN, " ") == (
        "textbook_adam and adam at lr 0.05 and batch 32 have the same loss curve: over 2 epochs and 1 seed "
        "the losses differ by at most 4.0e-06 of adam's (tolerance 0.001). By hand training took 1.50 "
        "times as long."
    )
    assert len(told.rows) == 2


def test_another_curve_is_a_caution() -> None:
    (told,) = said(trained("sgd", 0.5, 0.25), trained("textbook_sgd", 0.5, 0.26))
    assert told.kind == "caution"
    assert "NOT the same loss curve" in told.text
    assert "4.0e-02" in told.text


@pytest.mark.parametrize(
    "other",
    [
        trained("sgd", 0.5, 0.25, lr=0.1),
        trained("adam", 0.5, 0.25),
        trained({"name": "momentum", "momentum": 0.5}, 0.5, 0.25),
        trained("sgd", 0.5, 0.25, seed=1),
    ],
)
def test_only_runs_with_all_else_equal_are_twins(other: RunResult) -> None:
    assert not said(trained("textbook_sgd", 0.5, 0.25), other)


def test_parameters_have_to_be_the_same() -> None:
    library = trained({"name": "momentum", "momentum": 0.5}, 0.5, 0.25)
    assert said(trained({"name": "textbook_momentum", "momentum": 0.5}, 0.5, 0.25), library)
    assert not said(trained("textbook_momentum", 0.5, 0.25), library)


def test_each_twin_is_a_registered_optimiser_with_a_figure() -> None:
    twins = {
        name: getattr(OPTIMIZERS.load(name), "library_equivalent", None) for name in OPTIMIZERS.entries
    }
    assert {name for name, twin in twins.items() if twin} >= {"textbook_sgd", "textbook_adam"}
    for name, twin in twins.items():
        if twin:
            comparison = a_comparison(trained(twin, 0.5, 0.25), trained(name, 0.5, 0.25))
            assert [pair.names for pair in twins_of(comparison)] == [(name, twin)]
            assert [plot.name for plot in draw(comparison) if plot.name.startswith("by_hand")]


def test_runs_whose_weights_are_left_to_chance_are_no_twins() -> None:
    textbook = trained("textbook_sgd", 0.5, 0.25, strategy="hogwild", nodes=2)
    assert not said(trained("sgd", 0.5, 0.3, strategy="hogwild", nodes=2), textbook)


def test_other_strategies_are_named() -> None:
    fields: dict[str, Any] = {"strategy": "all_reduce", "nodes": 2}
    (told,) = said(trained("sgd", 0.5, 0.25, **fields), trained("textbook_sgd", 0.5, 0.25, **fields))
    assert "batch 32, all_reduce over mpi on 2 nodes, have" in told.text.replace(formats.JOIN, " ")
