"""Findings: sentences computed from the rows, never typed in, each with its numbers and its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.report.findings import accuracy, published, speed, target, trust
from orchestrator.report.findings import data_partitioning as partitioning
from orchestrator.report.findings import model_partitioning as cutting
from orchestrator.report.findings import stragglers as waiting
from orchestrator.report.findings import textbook_optimizers as textbook
from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import Comparison, WorkloadView

# Topic and rule, in the order in which they are told.
ABOUT_WHAT_WAS_PUBLISHED: tuple[tuple[str, Callable[[Comparison], Iterator[Finding]]], ...] = (
    ("Why", published.causes),
    ("Published", published.times),
    ("By hand", textbook.same_curve),
)
ABOUT_A_WORK: tuple[tuple[str, Callable[[WorkloadView], Iterator[Finding]]], ...] = (
    ("Target accuracy", target.first_at_target),
    ("Target accuracy", target.not_with_every_seed),
    ("Target accuracy", target.never_at_target),
    ("Time", speed.fastest),
    ("Time", speed.fewer_nodes_faster),
    ("Time", speed.slower_than_serial),
    ("Transport", speed.transports),
    ("Exchange", speed.all_reduce_and_ddp),
    ("Exchange", speed.collectives),
    ("Waiting", waiting.straggler_attribution),
    ("Memory", cutting.least_memory),
    ("Bubble", cutting.idle_stages),
    ("Cut", cutting.best_cut),
    ("Accuracy", accuracy.best_and_worst),
    ("Accuracy", accuracy.fewer_steps),
    ("Averaging", accuracy.averaging),
    ("Parameters", accuracy.variants),
    ("Partitioning", partitioning.recovery),
    ("Partitioning", partitioning.partitioners),
    ("Shared cores", trust.shared_cores),
    ("Not repeated", trust.not_repeated),
    ("No serial run", trust.no_serial),
    ("Other seeds", trust.other_seeds),
)
ABOUT_ALL: tuple[tuple[str, Callable[[Comparison], Iterator[Finding]]], ...] = (
    ("Not ok", trust.failures),
    ("Not done", trust.pending),
    ("Not verified", trust.unverified),
    ("Out of memory", trust.out_of_memory),
    ("Caveat", trust.caveats),
    ("Not alike", trust.unlike_conditions),
)


def find(comparison: Comparison) -> list[Finding]:
    """What the numbers say, work by work, and then what to beware of."""
    found: list[Finding] = []
    for scene in map(comparison.scene, comparison.works):
        work = scene.work if scene.one_of_several else None
        found += [
            replace(finding, topic=topic, work=work)
            for topic, rule in ABOUT_A_WORK
            for finding in rule(scene)
        ]
        found += [
            replace(finding, topic="Slow node", work=work)
            for finding in waiting.slow_node(scene, comparison)
        ]
    first, last = (_all_of(rules, comparison) for rules in (ABOUT_WHAT_WAS_PUBLISHED, ABOUT_ALL))
    return first + _once(found, len(comparison.works)) + last


def _once(found: list[Finding], works: int) -> list[Finding]:
    """What is said word for word of every work is said once, of all."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        alike.setdefault((finding.topic, finding.text), []).append(finding)
    told = []
    for same in alike.values():
        if works > 1 and len(same) == works:
            rows = tuple(row for finding in same for row in finding.rows)
            told.append(replace(same[0], work=None, rows=rows))
        else:
            told += same
    return told


def _all_of(
    rules: tuple[tuple[str, Callable[[Comparison], Iterator[Finding]]], ...], comparison: Comparison
) -> list[Finding]:
    return [replace(finding, topic=topic) for topic, rule in rules for finding in rule(comparison)]
