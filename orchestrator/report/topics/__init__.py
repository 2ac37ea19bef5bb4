"""The topics of a report. For each question, their findings and figures are in this order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from orchestrator.report.findings.base import QUESTIONS, Finding
from orchestrator.report.findings.decide import Claims, decide
from orchestrator.report.metrics.estimates import clock_errors
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import grouped
from orchestrator.report.topics.topic import Started, Topic

ORDER = """
asked published textbook_optimizers links choice accuracy common_seeds partitioners target noise_scale
many_nodes predicted speed exchange stragglers memory bubbles split_points samples conditions clock runs
faults
"""
TOPICS: list[Topic] = [import_module(f"{__name__}.{name}").TOPIC for name in ORDER.split()]
FIGURES = {kind.name: kind for topic in TOPICS for kind in topic.figures}


@dataclass(frozen=True)
class Asked:
    """The rules of a report, each of which has asked."""

    comparison: Comparison
    rules: Sequence[Started]

    def decided(self) -> Claims:
        """All comparisons that they ask for, decided together."""
        asks = [ask for rule in self.rules for ask in rule.asks]
        return decide(asks, clock_errors(self.comparison), self.comparison.tolerance)

    def findings(self, claims: Claims) -> list[Finding]:
        """What they say, once, in the order of the questions that it answers; cautions last."""
        found = [each for rule in self.rules for each in rule.findings(claims)]
        questions = [*QUESTIONS]
        return sorted(
            _merged(found, len(self.comparison.workloads)),
            key=lambda finding: (finding.caution, questions.index(finding.question)),
        )


def asked_by(comparison: Comparison) -> Asked:
    """The rules of a report on this comparison, those on the sweep as a whole last."""
    of_views = [
        Started(rule(view), view.workload if view.one_of_many else None)
        for view in map(comparison.view, comparison.workloads)
        for topic in TOPICS
        for rule in [*([] if view.workload.faults else topic.rules), *topic.rules_with_faults]
    ]
    of_sweep = [Started(rule(comparison)) for topic in TOPICS for rule in topic.sweep_rules]
    return Asked(comparison, [*of_views, *of_sweep])


def concluded(comparison: Comparison) -> tuple[Claims, list[Finding]]:
    """The decided comparisons of a report, and all findings."""
    asked = asked_by(comparison)
    claims = asked.decided()
    return claims, asked.findings(claims)


def find(comparison: Comparison) -> list[Finding]:
    """All findings, in the order of the questions that they answer, cautions last."""
    return concluded(comparison)[1]


def _merged(found: Sequence[Finding], workloads: int) -> Iterator[Finding]:
    """The findings, those with the same text for every workload as one."""
    alike = grouped(found, lambda each: (each.kind, each.text) if each.workload else id(each))
    for same in alike.values():
        if workloads > 1 and len(same) == workloads:
            yield replace(same[0], workload=None, rows=tuple(row for each in same for row in each.rows))
        else:
            yield from same
