"""What the page and report.md have in common: the tables of each workload, and the anchors of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.containers import containers
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.metrics.faults import FaultCost
from orchestrator.report.metrics.model_partition import is_partitioned
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.render.columns import (
    CERTIFICATES,
    CONTAINERS,
    FAULTS,
    GROUPS,
    MODEL_PARTITION,
    Column,
)
from orchestrator.report.render.tables import Table, table_of, table_of_groups


@dataclass(frozen=True)
class Chapter:
    """The tables of one workload; None for those without lines."""

    heading: str
    conditions: str
    results: Table
    partitioned: Table | None
    certified: Table | None
    contained: Table | None


class FirstOfKind:
    """The anchor of each finding that the page shows first of its kind; empty for later ones."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, finding: Finding) -> str:
        new = finding.anchor not in self._given
        self._given.add(finding.anchor)
        return finding.anchor if new else ""


def chapters_of(comparison: Comparison) -> list[Chapter]:
    """The tables of each workload."""
    chapters = []
    for workload in comparison.workloads:
        groups = comparison.groups_in(workload)
        ok = [group for group in groups if group.ok]
        partitioned = ok if is_partitioned(groups) else []
        certified = [group for group in ok if any(row.node_samples for row in group.ok_rows)]
        contained = [group for group in ok if any(map(containers, group.ok_rows))]
        chapters.append(
            Chapter(
                heading=workload.label,
                conditions=stated_conditions(comparison.view(workload)),
                results=table_of_groups(f"Results, {workload.label}", GROUPS, groups),
                partitioned=_of(
                    f"Model and memory per rank, {workload.label}", MODEL_PARTITION, partitioned
                ),
                certified=_of(f"Certificates, {workload.label}", CERTIFICATES, certified),
                contained=_of(f"Containers, {workload.label}", CONTAINERS, contained),
            )
        )
    return chapters


def _of(caption: str, columns: Sequence[Column[Group]], groups: Sequence[Group]) -> Table | None:
    return table_of_groups(caption, columns, groups) if groups else None


def fault_table(costs: Sequence[FaultCost]) -> Table:
    """What faults cost, a line per configuration."""
    return table_of(
        "What faults cost", FAULTS, costs, lambda cost: cost.group, lambda cost: bool(cost.missing)
    )
