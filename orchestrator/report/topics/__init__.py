"""The topics of a report. For each question, their findings and figures are in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.report.findings.base import QUESTIONS, Finding
from orchestrator.report.findings.decide import Claims, decide
from orchestrator.report.metrics.estimates import clock_errors
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.topics import (
    accuracy,
    asked,
    bubbles,
    choice,
    clock,
    common_seeds,
    conditions,
    exchange,
    faults,
    links,
    many_nodes,
    memory,
    noise_scale,
    partitioners,
    predicted,
    published,
    runs,
    samples,
    speed,
    split_points,
    stragglers,
    target,
    textbook_optimizers,
)
from orchestrator.report.topics.topic import Started

TOPICS = (
    asked.TOPIC,
    published.TOPIC,
    textbook_optimizers.TOPIC,
    links.TOPIC,
    choice.TOPIC,
    accuracy.TOPIC,
    common_seeds.TOPIC,
    partitioners.TOPIC,
    target.TOPIC,
    noise_scale.TOPIC,
    many_nodes.TOPIC,
    predicted.TOPIC,
    speed.TOPIC,
    exchange.TOPIC,
    stragglers.TOPIC,
    memory.TOPIC,
    bubbles.TOPIC,
    split_points.TOPIC,
    samples.TOPIC,
    conditions.TOPIC,
    clock.TOPIC,
    runs.TOPIC,
    faults.TOPIC,
)
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
    _, findings = concluded(comparison)
    return findings


def _merged(found: list[Finding], workloads: int) -> list[Finding]:
    """Merge findings that have the same text for every workload."""
    same_text: dict[object, list[Finding]] = {}
    for finding in found:
        key = (finding.kind, finding.text) if finding.workload else id(finding)
        same_text.setdefault(key, []).append(finding)
    merged = []
    for same in same_text.values():
        if workloads > 1 and len(same) == workloads:
            rows = tuple(row for finding in same for row in finding.rows)
            merged.append(replace(same[0], workload=None, rows=rows))
        else:
            merged += same
    return merged
