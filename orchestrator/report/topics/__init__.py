"""The topics of a report. For each question, their findings and figures are in this order."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.report.findings.base import QUESTIONS, Finding
from orchestrator.report.findings.claims import Claims
from orchestrator.report.metrics.estimates import clock_errors
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.topics import (
    accuracy,
    asked,
    bubbles,
    choice,
    clock,
    conditions,
    exchange,
    faults,
    links,
    many_nodes,
    memory,
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

TOPICS = (
    asked.TOPIC,
    published.TOPIC,
    textbook_optimizers.TOPIC,
    links.TOPIC,
    choice.TOPIC,
    accuracy.TOPIC,
    partitioners.TOPIC,
    target.TOPIC,
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


def find(comparison: Comparison, claims: Claims | None = None) -> list[Finding]:
    """All findings, in the order of the questions that they answer, cautions last.

    claims: the decided comparisons, if they are known already.
    """
    return _apply_rules(comparison, claims or asked_by(comparison).decided())


def asked_by(comparison: Comparison) -> Claims:
    """The comparisons of all findings, undecided: they are decided together."""
    claims = Claims(clock_errors(comparison), comparison.tolerance)
    _apply_rules(comparison, claims)
    return claims


def _apply_rules(comparison: Comparison, claims: Claims) -> list[Finding]:
    found: list[Finding] = []
    for view in map(comparison.view, comparison.workloads):
        workload = view.workload if view.one_of_many else None
        for topic in TOPICS:
            rules = [*([] if view.workload.faults else topic.rules), *topic.rules_with_faults]
            found += [replace(each, workload=workload) for rule in rules for each in rule(view, claims)]
    of_sweep = [each for topic in TOPICS for rule in topic.sweep_rules for each in rule(comparison, claims)]
    questions = [*QUESTIONS]
    return sorted(
        _merged(found, len(comparison.workloads)) + of_sweep,
        key=lambda finding: (finding.caution, questions.index(finding.question)),
    )


def _merged(found: list[Finding], workloads: int) -> list[Finding]:
    """Merge findings that have the same text for every workload."""
    same_text: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        same_text.setdefault((finding.kind, finding.text), []).append(finding)
    merged = []
    for same in same_text.values():
        if workloads > 1 and len(same) == workloads:
            rows = tuple(row for finding in same for row in finding.rows)
            merged.append(replace(same[0], workload=None, rows=rows))
        else:
            merged += same
    return merged
