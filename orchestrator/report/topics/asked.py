"""The answers to the questions of a sweep file."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.metrics.published import times_compare
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.topics.topic import Findings, Topic
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.question import Question


def questions(comparison: Comparison) -> Findings:
    """A finding for each question whose two configurations have values that compare."""
    asked = [(question, _groups(comparison, question)) for question in comparison.record.questions]
    answers = yield [
        Ask.of(QUANTITIES[question.measure], _pairs(question, groups), of_sweep=True)
        for question, groups in asked
    ]
    for (question, groups), answer in zip(asked, answers, strict=True):
        if not answer.compared:
            sides = {"compare": question.compare, "against": question.against}
            yield Finding("asked_unanswered", evidence(groups), {"measure": question.measure, **sides})
            continue
        (compared,) = answer.compared
        yield Finding(
            "asked",
            evidence(groups),
            {
                "measure": question.measure,
                "names": [*map(comparison.name_on, groups)],
                "compared": compared_data([compared]),
            },
        )


def _groups(comparison: Comparison, question: Question) -> list[Group]:
    """The configurations of both sides that have a value."""
    return [
        group
        for side in (question.compare, question.against)
        for group in comparison.groups
        if QUANTITIES[question.measure].sample(group) and matches(group.first.run, side)
    ]


def _pairs(question: Question, groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """The two sides; nothing unless each is one configuration, and their values compare."""
    if len(groups) != 2 or not (question.measure == "accuracy" or times_compare(*groups)):
        return []
    return [(groups[0], groups[1])]


TOPIC = Topic(sweep_rules=(questions,))
