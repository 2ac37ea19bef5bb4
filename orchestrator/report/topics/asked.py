"""The answers to the questions of a sweep file."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.base import evidence, said
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
            yield said(
                "asked_unanswered",
                f"No {question.measure} to compare of {_written(question.compare)} and "
                f"{_written(question.against)}.",
                evidence(groups),
                {"measure": question.measure},
            )
            continue
        (compared,) = answer.compared
        one, other = map(comparison.name_on, groups)
        verb = "reached" if question.measure == "accuracy" else "took"
        left, right = map(compared.quantity.write, compared.values)
        yield said(
            "asked",
            f"{one} {verb} {left}, {other} {right}{compared.aside}.",
            evidence(groups),
            {"measure": question.measure, "compared": compared_data([compared])},
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


def _written(selection: dict[str, object]) -> str:
    """`strategy ddp, nodes 4`"""
    return ", ".join(f"{field} {value}" for field, value in selection.items())


TOPIC = Topic(sweep_rules=(questions,))
