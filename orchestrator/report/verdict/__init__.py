"""The verdict: what to choose for each workload, how certain that is, and what it rests on.

It compares nothing itself: what it calls decided was decided by the claims of the findings.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.verdict.base import Evidence, Option, Verdict
from orchestrator.report.verdict.decisions import Decisions
from orchestrator.report.verdict.evidence import evidence
from orchestrator.report.verdict.strategies import among_strategies

__all__ = ["RULE", "Evidence", "Option", "Verdict", "evidence", "verdicts"]


# How a verdict is reached, for its tooltip.
RULE = (
    "Only configurations whose runs all finished and learned can be chosen. Those that are shown to "
    "lose more than one point of accuracy drop out first. Of the rest, one drops out if another is "
    "shown to be faster at an accuracy measured at most one point lower, or to be more accurate and was "
    "measured no slower. What remains is compared with serial. “Shown” means decided: all comparisons "
    "of a report together have a probability of at most 5% of a false claim."
)


def verdicts(comparison: Comparison, findings: Sequence[Finding]) -> list[Verdict]:
    """What to choose, for each workload."""
    decisions = Decisions(findings)
    return [
        among_strategies(comparison.view(workload), findings, decisions)
        for workload in comparison.workloads
    ]
