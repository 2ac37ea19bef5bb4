"""Questions: every kind of finding and every figure answers one that a report asks."""

from __future__ import annotations

from orchestrator.report.findings.base import KINDS, QUESTIONS
from orchestrator.report.topics import FIGURES, TOPICS


def test_findings_and_figures_answer_the_questions_of_a_report() -> None:
    answered = {each.question for each in [*KINDS.values(), *FIGURES.values()]}
    assert answered == {*QUESTIONS}


def test_figures_name_only_findings_that_exist() -> None:
    assert {kind for figure in FIGURES.values() for kind in figure.shows} <= {*KINDS}


def test_every_figure_has_its_own_name() -> None:
    assert len(FIGURES) == sum(len(topic.figures) for topic in TOPICS)
