"""Mistakes in comparing textbook optimizers with the library's: which runs are pairs, and how far curves
differ."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.findings.base import Finding
from orchestrator.report.topics import find
from orchestrator.report.topics.textbook_optimizers import loss_curves, optimizer_pairs
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run, records_of
from trainer.spec.registries import OPTIMIZERS


def trained(optimizer: Any, *losses: float, **fields: Any) -> RunResult:
    """A serial run with these losses after its epochs."""
    run = a_run(optimizer=optimizer, **fields)
    points = [point.model_copy(update={"test_loss": losses[point.epoch - 1]}) for point in run.epochs]
    return run.model_copy(update={"epochs": points})


def curves(*runs: RunResult) -> list[Finding]:
    return [finding for finding in find(a_comparison(*runs)) if finding.kind.startswith("textbook_curve")]


def test_curves_differ_by_the_worst_seed_relative_to_the_highest_loss() -> None:
    library = [trained("adam", 0.5, 0.25, train_s=4.0, seed=seed) for seed in (0, 1, 2)]
    for ends, kind, difference in (
        ((0.250001, 0.25, 0.25), "textbook_curve_equal", 2e-6),
        ((0.25, 0.26, 0.25), "textbook_curve_differs", 0.02),
    ):
        textbook = [
            trained("textbook_adam", 0.5, end, train_s=6.0, seed=seed) for seed, end in enumerate(ends)
        ]
        (finding,) = curves(*library[::-1], *textbook[:2], trained("textbook_adam", 9.0, 9.0, seed=3))
        assert (finding.kind, finding.caution) == (kind, kind == "textbook_curve_differs")
        assert finding.data["optimizers"] == ("textbook_adam", "adam")
        assert (finding.data["max_difference"], finding.data["seeds"]) == (pytest.approx(difference), 2)
    (equal,) = curves(trained("sgd", 0.5, 0.001), trained("textbook_sgd", 0.5, 0.001002))
    assert equal.kind == "textbook_curve_equal"  # rounding at the end of a curve
    (timed,) = curves(*library[:1], trained("textbook_adam", 0.5, 0.25, train_s=6.0))
    assert timed.data["compared"][0]["values"] == [pytest.approx(6.0), pytest.approx(4.0)]


@pytest.mark.parametrize(
    ("textbook", "other", "fields"),
    [
        ("textbook_sgd", "sgd", {"lr": 0.1}),
        ("textbook_sgd", "adam", {}),
        ("textbook_momentum", {"name": "momentum", "momentum": 0.5}, {}),
        ("textbook_sgd", "sgd", {"seed": 1}),
        ("textbook_sgd", "sgd", {"strategy": "hogwild", "nodes": 2}),
    ],
    ids=["rate", "optimizer", "parameter", "seed", "irreproducible"],
)
def test_only_runs_with_all_else_equal_are_pairs(textbook: str, other: Any, fields: dict[str, Any]) -> None:
    own = {name: each for name, each in fields.items() if name in ("strategy", "nodes")}
    assert not curves(trained(textbook, 0.5, 0.25, **own), trained(other, 0.5, 0.25, **fields))


def test_each_library_optimizer_is_registered_and_has_a_figure() -> None:
    pairs = {name: getattr(OPTIMIZERS.load(name), "equals", None) for name in OPTIMIZERS.entries}
    assert {name for name, library in pairs.items() if library} >= {"textbook_sgd", "textbook_adam"}
    for name, library in pairs.items():
        if library:
            comparison = a_comparison(trained(library, 0.5, 0.25), trained(name, 0.5, 0.3))
            (pair,) = optimizer_pairs(comparison)
            assert pair.names == (name, library)
            drawn = [(record["series"], record["loss"]) for record in records_of(loss_curves(pair))]
            assert drawn == [(library, 0.5), (library, 0.25), (name, 0.5), (name, 0.3)]
