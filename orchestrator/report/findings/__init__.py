"""Findings: statements computed from the rows, each with its numbers and its runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from orchestrator.report.findings import (
    accuracy,
    asked,
    cautions,
    clock,
    data_partition,
    faults,
    links,
    model_partition,
    published,
    speed,
    stragglers,
    target,
    textbook_optimizers,
    verdict,
)
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.claims import Claims
from orchestrator.report.formats import JOIN
from orchestrator.report.metrics.estimates import clock_errors
from orchestrator.report.model.comparison import Comparison, WorkloadView

# The rules, in the order in which a report shows their findings.
OPENING_RULES: tuple[Callable[[Comparison, Claims], Iterator[Finding]], ...] = (
    asked.questions,
    published.ablations,
    published.times,
    textbook_optimizers.loss_curves,
    links.links,
)
WORKLOAD_RULES: tuple[Callable[[WorkloadView, Claims], Iterator[Finding]], ...] = (
    verdict.front,
    verdict.more_nodes,
    target.target_first,
    target.target_some_seeds,
    target.target_never,
    speed.fastest,
    speed.slower_than_serial,
    speed.transports,
    speed.all_reduce_and_ddp,
    speed.mean_gradient,
    stragglers.straggler,
    model_partition.least_memory,
    model_partition.bubble_fractions,
    model_partition.split_point,
    accuracy.best_accuracy,
    accuracy.fewer_updates,
    accuracy.averaging,
    accuracy.variants,
    data_partition.partitioner_loss,
    data_partition.partitioner_effect,
    cautions.accuracy_is,
    cautions.conditions_unequal,
    cautions.scaled_beyond_the_rule,
    cautions.shared_cores,
    clock.cluster_time,
    cautions.too_few_seeds,
    cautions.drift,
    cautions.not_learned,
    cautions.no_serial,
    cautions.other_seeds,
)
# Of a workload with faults. Its wall times lack what faults cost: lost work and restarts.
FAULTY_RULES: tuple[Callable[[WorkloadView, Claims], Iterator[Finding]], ...] = (
    stragglers.straggler,
    cautions.accuracy_is,
    cautions.conditions_unequal,
    cautions.scaled_beyond_the_rule,
    cautions.shared_cores,
    cautions.too_few_seeds,
    cautions.drift,
    cautions.not_learned,
)
SWEEP_RULES: tuple[Callable[[Comparison, Claims], Iterator[Finding]], ...] = (
    faults.fault_cost,
    verdict.undecided,
    cautions.failed,
    cautions.pending,
    cautions.unverified,
    cautions.out_of_memory,
    cautions.thread_ranks,
    cautions.no_common_clock,
    links.not_enforced,
    clock.disturbed,
    clock.cpu_inflation,
    clock.no_cluster_time,
    cautions.strategy_caveats,
    cautions.conditions_differ,
)


def find(comparison: Comparison, claims: Claims | None = None) -> list[Finding]:
    """All findings: on published results and links, on each workload, and then on the sweep as a whole.

    claims: what is decided, if that is known already.
    """
    return _apply_rules(comparison, claims or asked_by(comparison).decided())


def asked_by(comparison: Comparison) -> Claims:
    """The comparisons of all findings, undecided: they are decided together."""
    claims = Claims(clock_errors(comparison), comparison.tolerance)
    _apply_rules(comparison, claims)
    return claims


def findings_json(findings: Sequence[Finding]) -> str:
    """findings.json: every finding with its numbers, its runs and what was decided."""
    entries = [
        {
            "kind": finding.kind,
            "topic": finding.topic,
            "caution": finding.caution,
            "workload": finding.workload.label if finding.workload else None,
            "text": finding.text.replace(JOIN, " "),
            "runs": [row.key for row in finding.rows],
            "data": finding.data,
        }
        for finding in findings
    ]
    return json.dumps(entries, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _apply_rules(comparison: Comparison, claims: Claims) -> list[Finding]:
    found: list[Finding] = []
    for view in map(comparison.view, comparison.workloads):
        workload = view.workload if view.one_of_many else None
        rules = FAULTY_RULES if view.workload.faults else WORKLOAD_RULES
        findings = [finding for rule in rules for finding in rule(view, claims)]
        findings += stragglers.slow_node(view, claims, comparison)
        found += [replace(finding, workload=workload) for finding in findings]
    first = [finding for rule in OPENING_RULES for finding in rule(comparison, claims)]
    last = [finding for rule in SWEEP_RULES for finding in rule(comparison, claims)]
    return first + _merged(found, len(comparison.workloads)) + last


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
