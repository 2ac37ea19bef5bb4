"""Textbook optimizers in the report: which runs are pairs, and whether their loss curves are equal."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.findings.base import Finding
from orchestrator.report.plots import draw
from orchestrator.report.topics import find
from orchestrator.report.topics.textbook_optimizers import optimizer_pairs
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run
from trainer.spec.registries import OPTIMIZERS


def trained(optimizer: Any, *losses: float, **fields: Any) -> RunResult:
    """A serial run with these losses after its epochs."""
    run = a_run(optimizer=optimizer, **fields)
    points = [point.model_copy(update={"test_loss": losses[point.epoch - 1]}) for point in run.epochs]
    return run.model_copy(update={"epochs": points})


def curves(*runs: RunResult) -> list[Finding]:
    return [finding for finding in find(a_comparison(*runs)) if finding.kind.startswith("textbook_curve")]


def test_an_equal_curve_is_reported_with_its_difference_and_cost() -> None:
    (finding,) = curves(
        trained("adam", 0.5, 0.25, train_s=4.0), trained("textbook_adam", 0.5, 0.250001, train_s=6.0)
    )
    assert (finding.kind, finding.caution) == ("textbook_curve_equal", False)
    assert finding.data["optimizers"] == ("textbook_adam", "adam")
    assert (finding.data["max_difference"], finding.data["seeds"]) == (pytest.approx(2e-6), 1)
    (times,) = finding.data["compared"]
    assert times["values"] == [pytest.approx(6.0), pytest.approx(4.0)]
    assert len(finding.rows) == 2


def test_a_different_curve_is_a_caution() -> None:
    (finding,) = curves(trained("sgd", 0.5, 0.25), trained("textbook_sgd", 0.5, 0.26))
    assert (finding.kind, finding.caution) == ("textbook_curve_differs", True)
    assert finding.data["max_difference"] == pytest.approx(0.02)


def test_rounding_does_not_make_the_end_of_a_curve_different() -> None:
    (finding,) = curves(trained("sgd", 0.5, 0.001), trained("textbook_sgd", 0.5, 0.001002))
    assert finding.kind == "textbook_curve_equal"


@pytest.mark.parametrize(
    "other",
    [
        trained("sgd", 0.5, 0.25, lr=0.1),
        trained("adam", 0.5, 0.25),
        trained({"name": "momentum", "momentum": 0.5}, 0.5, 0.25),
        trained("sgd", 0.5, 0.25, seed=1),
    ],
)
def test_only_runs_with_all_else_equal_are_pairs(other: RunResult) -> None:
    assert not curves(trained("textbook_sgd", 0.5, 0.25), other)


def test_parameters_must_be_equal() -> None:
    library = trained({"name": "momentum", "momentum": 0.5}, 0.5, 0.25)
    assert curves(trained({"name": "textbook_momentum", "momentum": 0.5}, 0.5, 0.25), library)
    assert not curves(trained("textbook_momentum", 0.5, 0.25), library)


def test_each_library_optimizer_is_registered_and_has_a_figure() -> None:
    library_optimizers = {
        name: getattr(OPTIMIZERS.load(name), "equals", None) for name in OPTIMIZERS.entries
    }
    assert {name for name, library in library_optimizers.items() if library} >= {
        "textbook_sgd",
        "textbook_adam",
    }
    for name, library in library_optimizers.items():
        if library:
            comparison = a_comparison(trained(library, 0.5, 0.25), trained(name, 0.5, 0.25))
            assert [pair.names for pair in optimizer_pairs(comparison)] == [(name, library)]
            assert [plot.name for plot in draw(comparison) if plot.name.startswith("textbook_optimizers")]


def test_irreproducible_runs_are_not_paired() -> None:
    textbook = trained("textbook_sgd", 0.5, 0.25, strategy="hogwild", nodes=2)
    assert not curves(trained("sgd", 0.5, 0.3, strategy="hogwild", nodes=2), textbook)
