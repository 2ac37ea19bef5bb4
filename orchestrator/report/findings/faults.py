"""Findings about injected faults: what they cost each strategy."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, percent, points, seconds, whole
from orchestrator.report.metrics.faults import FaultCost, fault_costs
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.statistics.spread import Spread

MIN_SEEDS = 3  # below, no difference of means is stated


def fault_cost(comparison: Comparison) -> Iterator[Finding]:
    """Time, steps, samples and accuracy that faults cost a configuration."""
    for cost in fault_costs(comparison):
        with_s = cost.with_faults(lambda row: row.elapsed_s)
        without_s = cost.without_faults(lambda row: row.elapsed_s)
        extra_s = cost.difference(lambda row: row.elapsed_s)
        if cost.missing is None and with_s and without_s and extra_s:
            yield _finding(cost, with_s, without_s, extra_s)


def _finding(cost: FaultCost, with_s: Spread, without_s: Spread, extra_s: Spread) -> Finding:
    group, seeds = cost.group, len(cost.pairs)
    repeated = cost.with_faults(lambda row: row.repeated_steps)
    lost = cost.with_faults(lambda row: row.samples_lost)
    accuracy = cost.difference(lambda row: row.accuracy)
    stated = seeds >= MIN_SEEDS
    name = f"{group.strategy_label} over {group.transport} on {group.shape.label}"
    times = f"{without_s.range(seconds)} without, {with_s.range(seconds)} with"
    parts = [
        f"time {'+' if extra_s.mean >= 0 else ''}{seconds(extra_s.mean)} ({times})"
        if stated
        else f"time {times}"
    ]
    if repeated:
        parts.append(f"{repeated.range(whole)} steps repeated")
    if lost:
        parts.append(f"{lost.range(whole)} samples lost")
    if accuracy and stated:
        parts.append(f"accuracy {points(accuracy.mean)}")
    elif with_accuracy := cost.with_faults(lambda row: row.accuracy):
        without_accuracy = cost.without_faults(lambda row: row.accuracy)
        before = f"{without_accuracy.range(percent)} without, " if without_accuracy else ""
        parts.append(f"accuracy {before}{with_accuracy.range(percent)} with")
    basis = f"Means over {count(seeds, 'seed')}" if stated else f"Ranges over {count(seeds, 'seed')}"
    basis += "" if stated else f"; fewer than {MIN_SEEDS} seeds state no difference"
    return Finding(
        "fault_cost",
        f"{name}, {group.first.faults_label}: {', '.join(parts)}. {basis}.",
        tuple(row for pair in cost.pairs for row in pair),
        {
            "strategy": group.strategy_label,
            "faults": group.first.faults_label,
            "seeds": seeds,
            "elapsed_s": with_s.mean,
            "undisturbed_s": without_s.mean,
            "extra_s": extra_s.mean if stated else None,
            "repeated_steps": repeated.mean if repeated else None,
            "samples_lost": lost.mean if lost else None,
            "accuracy_difference": accuracy.mean if accuracy and stated else None,
        },
    )
