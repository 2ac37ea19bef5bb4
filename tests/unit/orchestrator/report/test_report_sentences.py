"""Sentences of figures: one for each, from its own workload, and decided only by findings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.report.figures.sentences import figure_sentence
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import JOIN
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import Workload
from orchestrator.report.plots import draw
from orchestrator.report.topics import FIGURES, find
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_golden import golden_comparison, on_360_images
from tests.unit.report_support import a_comparison, around, repeated, unrendered_figures

LONGEST = 320


@pytest.fixture(scope="module")
def golden() -> Comparison:
    return golden_comparison()


@pytest.fixture(scope="module")
def findings(golden: Comparison) -> list[Finding]:
    return find(golden)


@pytest.mark.slow
def test_every_figure_has_a_sentence(golden: Comparison, findings: Sequence[Finding]) -> None:
    with unrendered_figures():
        plots = draw(golden)
    said = {plot.name: sentence(plot.kind.name, golden, plot.workload, findings) for plot in plots}
    assert [name for name, text in said.items() if not text.endswith(".")] == []
    assert [text for text in said.values() if len(text) > LONGEST] == []


def sentence(name: str, comparison: Comparison, workload: Workload, findings: Sequence[Finding]) -> str:
    kind = FIGURES[name]
    return figure_sentence(kind.shows, kind.otherwise, comparison.view(workload), findings)


def said(name: str, *results: RunResult) -> str:
    comparison = a_comparison(*results)
    return sentence(name, comparison, comparison.workloads[0], find(comparison)).replace(JOIN, " ")


def test_only_a_finding_decides_what_is_the_fastest() -> None:
    fast, equal = repeated("all_reduce", around(4.0, 0.1), nodes=2), around(4.02, 0.1)[::-1]
    decided = said("speedup", *fast, *repeated("ddp", around(6.0, 0.1), nodes=2))
    undecided = said("speedup", *fast, *repeated("ddp", equal, nodes=2))
    assert "the fastest of 2 configurations" in decided
    assert "the fastest" not in undecided
    assert all("all_reduce over mpi took 4.00 s and reached 90.0%" in text for text in (decided, undecided))


def test_accuracies_are_measured_whatever_is_decided() -> None:
    text = said(
        "strategies",
        *repeated("all_reduce", around(0.9, 0.002), "accuracy", nodes=2),
        *repeated("ddp", around(0.5, 0.002)[::-1], "accuracy", nodes=2),
    )
    assert text == (
        "Measured on 2 nodes: test accuracy from 50.0% (ddp over gloo) to 90.0% (all_reduce over mpi)."
    )


def test_the_worst_is_not_another_than_the_finding_names() -> None:
    unlearned = repeated("one_shot", around(0.1, 0.002), "accuracy", nodes=2)
    even = [around(0.9, 0.02), around(0.9, 0.02)[::-1]]
    runs = [
        *repeated("all_reduce", even[0], "accuracy", nodes=2),
        *repeated("ddp", even[1], "accuracy", nodes=2),
        *unlearned,
    ]
    text = said("strategies", *map(on_360_images, runs))
    assert "10.0%" not in text
    assert "among those that learned" in text


def test_findings_of_other_workloads_do_not_count() -> None:
    fast = [*repeated("all_reduce", around(4.0), nodes=2), *repeated("ddp", around(6.0), nodes=2)]
    other = [
        *repeated("all_reduce", around(9.0), nodes=2, lr=0.5),
        *repeated("ddp", around(8.0), nodes=2, lr=0.5),
    ]
    comparison = a_comparison(*fast, *other)
    found = find(comparison)
    texts = [sentence("speedup", comparison, workload, found) for workload in comparison.workloads]
    assert ["all_reduce" in texts[0], "ddp" in texts[1]] == [True, True]
    assert ["ddp" in texts[0], "all_reduce" in texts[1]] == [False, False]
