"""The verdict: what to choose for each workload, how certain that is, and what it rests on.

It compares nothing itself: what it calls decided was decided by the claims of the findings.
"""

from __future__ import annotations

from orchestrator.report.findings.decide import Claims
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.verdict.choice import of_workload
from orchestrator.report.verdict.evidence import Evidence, evidence
from orchestrator.report.verdict.lab import of_lab, of_textbook_optimizers
from orchestrator.report.verdict.options import Option, Verdict

__all__ = ["Evidence", "Option", "Verdict", "evidence", "verdicts"]


def verdicts(comparison: Comparison, claims: Claims) -> list[Verdict]:
    """What to choose, for each workload; of a lab, one verdict on whether it reproduces.

    claims: those of the findings, decided.
    """
    lab = of_lab(comparison, claims) or of_textbook_optimizers(comparison)
    if lab:
        return [lab]
    return [of_workload(comparison, workload, claims) for workload in comparison.workloads]
