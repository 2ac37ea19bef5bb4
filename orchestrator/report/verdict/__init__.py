"""The verdict: what to choose for each workload, how certain that is, and what it rests on.

It compares nothing itself: what it calls decided was decided by the claims of the findings.
"""

from __future__ import annotations

from orchestrator.report.findings.decide import Claims
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import Workload
from orchestrator.report.verdict.base import UNTIMED, Evidence, Option, Verdict
from orchestrator.report.verdict.evidence import evidence
from orchestrator.report.verdict.lab import of_lab, of_textbook_optimizers
from orchestrator.report.verdict.strategies import among_strategies
from orchestrator.report.verdict.target import to_target
from orchestrator.report.verdict.under_faults import under_faults

__all__ = ["Evidence", "Option", "Verdict", "evidence", "verdicts"]


def verdicts(comparison: Comparison, claims: Claims) -> list[Verdict]:
    """What to choose, for each workload; of a lab, one verdict on whether it reproduces.

    claims: those of the findings, decided.
    """
    lab = of_lab(comparison, claims) or of_textbook_optimizers(comparison)
    if lab:
        return [lab]
    return [_of_workload(comparison, workload, claims) for workload in comparison.workloads]


def _of_workload(comparison: Comparison, workload: Workload, claims: Claims) -> Verdict:
    view = comparison.view(workload)
    if not view.groups:
        return Verdict(workload, "There is nothing to choose from: no run has finished.", "", decided=False)
    if view.disturbed and (workload.faults or workload.target_accuracy is not None):
        return Verdict(workload, UNTIMED, "Accuracy alone does not choose here.", decided=False)
    if workload.faults:
        return under_faults(view, comparison, claims)
    if workload.target_accuracy is not None:
        return to_target(view, claims)
    return among_strategies(view, claims)
