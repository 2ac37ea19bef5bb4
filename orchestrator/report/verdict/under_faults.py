"""The verdict on a workload with faults: what they cost each configuration."""

from __future__ import annotations

from typing import Any

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.quantities import Q
from orchestrator.report.topics.faults import fault_costs
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.options import MOST, option


def under_faults(view: WorkloadView, comparison: Comparison, claims: Claims) -> Verdict:
    """What faults cost, the least time first; configurations with faults are not compared."""
    keys = {group.first.key for group in view.groups}
    costs = [
        found
        for cost in fault_costs(comparison)
        if cost.undisturbed
        and cost.group.first.key in keys
        and (found := claims.between(Q.elapsed_s, cost.group, cost.undisturbed))
    ]
    costs.sort(key=lambda found: found.values[0] / found.values[1])
    data = {"faults": view.workload.faults, "costs": [_cost(view, found) for found in costs]}
    options = tuple(option(view, found.left, claims, Q.elapsed_s) for found in costs[:MOST])
    headline, certainty = sentence("under_faults", data), sentence("under_faults_certainty", data)
    return Verdict(view.workload, headline, certainty, False, options)


def _cost(view: WorkloadView, found: Compared) -> dict[str, Any]:
    sides = (found.left, found.right)
    known = all(Q.accuracy.sample(group) for group in sides)
    return {
        "name": view.name(found.left),
        "accuracies": [Q.accuracy.mean_of(group) for group in sides] if known else None,
        "compared": found.data(),
    }
