"""Findings about injected faults: what they cost each strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.findings.compared import Compared
from orchestrator.report.formats import percent, seconds, whole
from orchestrator.report.metrics.faults import FaultCost, fault_costs
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import ACCURACY, ELAPSED_S, REPEATED_STEPS, SAMPLES_LOST


def fault_cost(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Time, steps, samples and accuracy that faults cost a configuration."""
    costs = [cost for cost in fault_costs(comparison) if cost.missing is None]
    pairs = [(cost.group, cost.undisturbed) for cost in costs if cost.undisturbed]
    times = {id(each.left): each for each in claims.asked_by_sweep(ELAPSED_S, pairs)}
    accuracies = {id(each.left): each for each in claims.asked_by_sweep(ACCURACY, pairs)}
    for cost in costs:
        if time := times.get(id(cost.group)):
            yield _finding(cost, time, accuracies.get(id(cost.group)))


def _finding(cost: FaultCost, time: Compared, accuracy: Compared | None) -> Finding:
    group = cost.group
    repeated = cost.with_faults(REPEATED_STEPS.of)
    lost = cost.with_faults(SAMPLES_LOST.of)
    name = f"{group.strategy_label} over {group.transport} on {group.shape.label}"
    parts = [f"time {_both(time, seconds)}{time.aside}"]
    if accuracy:
        parts.append(f"accuracy {_both(accuracy, percent)}{accuracy.aside}")
    if repeated:
        parts.append(f"{repeated.range(whole)} steps repeated")
    if lost:
        parts.append(f"{lost.range(whole)} samples lost")
    return Finding(
        "fault_cost",
        f"{name}, {group.first.faults_label}: {'; '.join(parts)}.",
        tuple(row for pair in cost.pairs for row in pair),
        {
            "strategy": group.strategy_label,
            "faults": group.first.faults_label,
            "elapsed_s": time.values[0],
            "undisturbed_s": time.values[1],
            "repeated_steps": repeated.mean if repeated else None,
            "samples_lost": lost.mean if lost else None,
            "accuracy": accuracy.values if accuracy else None,
            "compared": compared_data([time, accuracy] if accuracy else [time]),
        },
    )


def _both(compared: Compared, write: Callable[[float], str]) -> str:
    return f"{write(compared.values[0])} with faults and {write(compared.values[1])} without"
