"""Mistakes in what figures say: no sentence, one of another workload, or one that decides what no finding
does."""

from __future__ import annotations

import pytest

from orchestrator.report.figures.sentences import figure_sentence
from orchestrator.report.findings.base import KINDS, QUESTIONS
from orchestrator.report.formats import JOIN
from orchestrator.report.topics import FIGURES, TOPICS, find
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_golden import golden, on_360_images
from tests.unit.report_support import a_comparison, around, repeated

LONGEST = 320


@pytest.mark.slow
def test_every_figure_has_a_sentence_and_answers_a_question() -> None:
    comparison, findings = golden().comparison, golden().findings
    for plot in golden().plots:
        text = figure_sentence(
            plot.kind.shows, plot.kind.otherwise, comparison.view(plot.workload), findings
        )
        assert (text[-1:], len(text) <= LONGEST) == (".", True), plot.name
    assert {each.question for each in [*KINDS.values(), *FIGURES.values()]} == {*QUESTIONS}
    assert {kind for figure in FIGURES.values() for kind in figure.shows} <= {*KINDS}
    assert len(FIGURES) == sum(len(topic.figures) for topic in TOPICS)  # each has its own name


def said(name: str, *results: RunResult) -> list[str]:
    """What a figure says of each workload."""
    comparison, kind = a_comparison(*results), FIGURES[name]
    found = find(comparison)
    views = map(comparison.view, comparison.workloads)
    return [figure_sentence(kind.shows, kind.otherwise, view, found).replace(JOIN, " ") for view in views]


def test_only_a_finding_decides_what_is_the_fastest() -> None:
    fast, equal = repeated("all_reduce", around(4.0, 0.1), nodes=2), around(4.02, 0.1)[::-1]
    (decided,) = said("speedup", *fast, *repeated("ddp", around(6.0, 0.1), nodes=2))
    (undecided,) = said("speedup", *fast, *repeated("ddp", equal, nodes=2))
    assert "the fastest of 2 configurations" in decided
    assert "the fastest" not in undecided
    assert all("all_reduce over mpi took 4.00 s and reached 90.0%" in text for text in (decided, undecided))


def test_accuracies_are_measured_whatever_is_decided() -> None:
    best = repeated("all_reduce", around(0.9, 0.002), "accuracy", nodes=2)
    head = "Measured on 2 nodes: test accuracy"
    (text,) = said("strategies", *best, *repeated("ddp", around(0.5, 0.002), "accuracy", nodes=2))
    assert text == f"{head} from 50.0% (ddp over gloo) to 90.0% (all_reduce over mpi)."
    (same,) = said("strategies", *best, *repeated("ddp", around(0.9, 0.002), "accuracy", nodes=2))
    assert same == f"{head} 90.0% in each of 2 configurations."
    assert said("strategies", *best) == [f"{head} 90.0% (all_reduce over mpi)."]
    unlearned = repeated("one_shot", around(0.1, 0.002), "accuracy", nodes=2)
    (text,) = said("strategies", *map(on_360_images, [*best, *unlearned]))
    assert (
        text == "Measured on 2 nodes, among those that learned: test accuracy 90.0% (all_reduce over mpi)."
    )


def test_a_figure_says_what_findings_on_its_own_workload_say() -> None:
    """Those over another link are about the same serial runs."""
    runs = [
        run
        for mbit, first, second in ((100, 4.0, 6.0), (10, 9.0, 8.0))
        for name, mean in (("all_reduce", first), ("ddp", second))
        for run in repeated(name, around(mean), nodes=2, transport="gloo", link={"bandwidth_mbit": mbit})
    ]
    one, other = said("speedup", *repeated("serial", around(12.0)), *runs)
    assert ["all_reduce over" in one, "ddp over" in one] == [True, False]
    assert ["all_reduce over" in other, "ddp over" in other] == [False, True]
