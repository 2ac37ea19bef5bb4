"""Questions: every topic and every figure answers one."""

from __future__ import annotations

import pytest

from orchestrator.report.figures import CAPTIONS
from orchestrator.report.findings.base import KINDS
from orchestrator.report.findings.questions import (
    FIGURES,
    FURTHER,
    QUESTIONS,
    TOPICS,
    question_of_figure,
    question_of_topic,
)


def test_the_questions_are_in_the_order_of_the_report() -> None:
    assert list(QUESTIONS) == [
        "asked",
        "source",
        "links",
        "partitioners",
        "choice",
        "scale",
        "accuracy",
        "time",
        "waiting",
        "data",
        "model",
        "further",
    ]
    assert len({*QUESTIONS.values()}) == len(QUESTIONS)


@pytest.mark.parametrize(
    ("topic", "question"),
    [
        ("Speed", "scale"),
        ("Stragglers", "waiting"),
        ("Partitioning", "partitioners"),
        ("Ablation", "source"),
        ("Parameters", FURTHER),
    ],
)
def test_topics_have_a_question(topic: str, question: str) -> None:
    assert question_of_topic(topic) == question


@pytest.mark.parametrize(
    ("figure", "question"),
    [("speedup", "scale"), ("phases", "time"), ("labels", "data"), ("textbook_optimizers", "source")],
)
def test_figures_have_a_question(figure: str, question: str) -> None:
    assert question_of_figure(figure) == question


def test_the_lists_name_only_what_exists() -> None:
    topics = {kind.topic for kind in KINDS.values()}
    assert {topic for named in TOPICS.values() for topic in named} <= topics
    assert {figure for named in FIGURES.values() for figure in named} <= {*CAPTIONS}
    assert {*TOPICS, *FIGURES} <= {*QUESTIONS}
