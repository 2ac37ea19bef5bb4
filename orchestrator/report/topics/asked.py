"""The answers to the questions of a sweep file."""

from __future__ import annotations

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
from orchestrator.report.metrics.published import times_compare
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.question import Question


def questions(comparison: Comparison) -> Findings:
    """The answer to each question whose two sides are one configuration each, with values that compare."""
    asked = [(question, _groups(comparison, question)) for question in comparison.record.questions]
    answers = yield [_ask(question, groups) for question, groups in asked]
    for (question, groups), answer in zip(asked, answers, strict=True):
        measure = question.measure
        if answer.compared:
            names = [*map(comparison.name_on, groups)]
            yield Finding.of("asked", groups, answer.compared, measure=measure, names=names)
        else:
            yield Finding.of(
                "asked_unanswered",
                groups,
                measure=measure,
                compare=question.compare,
                against=question.against,
            )


def _groups(comparison: Comparison, question: Question) -> list[Group]:
    """The configurations of both sides that have a value."""
    return [
        group
        for side in (question.compare, question.against)
        for group in comparison.groups
        if QUANTITIES[question.measure].sample(group) and matches(group.first.run, side)
    ]


def _ask(question: Question, groups: list[Group]) -> Ask:
    pairs = [(groups[0], groups[1])] if len(groups) == 2 else []
    compare = question.measure == "accuracy" or times_compare(*groups)
    return Ask.of(QUANTITIES[question.measure], pairs if compare else [], of_sweep=True)


TOPIC = Topic(sweep_rules=(questions,))
