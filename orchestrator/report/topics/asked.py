"""The answers to the questions of a sweep file."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.metrics.published import times_compare
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import QUANTITIES
from orchestrator.report.topics.topic import Topic
from orchestrator.sweeps.expand import matches


def questions(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """A finding for each question whose two configurations have values that compare."""
    for question in comparison.record.questions:
        quantity = QUANTITIES[question.measure]
        groups = [
            group
            for side in (question.compare, question.against)
            for group in comparison.groups
            if quantity.sample(group) and matches(group.first.run, side)
        ]
        if len(groups) != 2 or not (question.measure == "accuracy" or times_compare(*groups)):
            yield Finding(
                "asked_unanswered",
                f"No {question.measure} to compare of {_written(question.compare)} and "
                f"{_written(question.against)}.",
                evidence(groups),
                {"measure": question.measure},
            )
            continue
        one, other = groups
        (compared,) = claims.asked_by_sweep(quantity, [(one, other)])
        verb = "reached" if question.measure == "accuracy" else "took"
        left, right = map(quantity.write, compared.values)
        yield Finding(
            "asked",
            f"{comparison.name_on(one)} {verb} {left}, {comparison.name_on(other)} {right}"
            f"{compared.aside}.",
            evidence(groups),
            {"measure": question.measure, "compared": compared_data([compared])},
        )


def _written(selection: dict[str, object]) -> str:
    """`strategy ddp, nodes 4`"""
    return ", ".join(f"{field} {value}" for field, value in selection.items())


TOPIC = Topic(sweep_rules=(questions,))
