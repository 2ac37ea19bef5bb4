"""What the page and report.md have in common: the tables of each workload, and the anchors of findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities.containers import containers
from orchestrator.report.quantities.model_partition import is_partitioned
from orchestrator.report.render.columns import columns_of_groups
from orchestrator.report.render.line_columns import FAULTS
from orchestrator.report.render.tables import Cell, Column, Table, table_of, table_of_groups
from orchestrator.report.render.workloads import workload_names
from orchestrator.report.topics.faults import FaultCost


@dataclass(frozen=True)
class Chapter:
    """The tables of one workload. others: those of OTHERS that have lines."""

    heading: str
    conditions: str
    results: Table
    others: Mapping[str, Table]


# The tables beside that of results, by name: their titles, and which of the ok configurations they show.
OTHERS: dict[str, tuple[str, Callable[[Sequence[Group]], Sequence[Group]]]] = {
    "memory": ("Model and memory per rank", lambda ok: ok if is_partitioned(ok) else []),
    "certificates": (
        "Certificates",
        lambda ok: [group for group in ok if any(row.node_samples for row in group.ok_rows)],
    ),
    "containers": ("Containers", lambda ok: [group for group in ok if any(map(containers, group.ok_rows))]),
}


class FirstOfKind:
    """The anchor of each finding that the page shows first of its kind; empty for later ones."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, finding: Finding) -> str:
        new = finding.anchor not in self._given
        self._given.add(finding.anchor)
        return finding.anchor if new else ""


def chapters_of(comparison: Comparison, claims: Claims) -> list[Chapter]:
    """The tables of each workload; one for all if each has a single configuration."""
    columns = columns_of_groups("groups", speedup_intervals(comparison, claims))
    parts = [(workload, comparison.groups_in(workload)) for workload in comparison.workloads]
    if len(parts) > 1 and all(len(groups) == 1 for _, groups in parts):
        names = workload_names(comparison.workloads)
        column = Column[Group](
            "workload", "Workload", lambda group: Cell(names.of(group.workload)), number=False
        )
        together = [group for _, groups in parts for group in groups]
        return [_chapter(names.shared or "all workloads", together, "", columns, [column])]
    return [
        _chapter(workload.label, groups, stated_conditions(comparison.view(workload)), columns)
        for workload, groups in parts
    ]


def _chapter(
    label: str,
    groups: Sequence[Group],
    conditions: str,
    columns: Sequence[Column[Group]],
    before: Sequence[Column[Group]] = (),
) -> Chapter:
    """columns: of the results. before: columns that come first in every table."""
    others = {
        name: table_of_groups(f"{title}, {label}", [*before, *columns_of_groups(name)], shown)
        for name, (title, shown_of) in OTHERS.items()
        if (shown := shown_of([group for group in groups if group.ok]))
    }
    results = table_of_groups(f"Results, {label}", [*before, *columns], groups)
    return Chapter(label, conditions, results, others)


def fault_table(costs: Sequence[FaultCost]) -> Table:
    """What faults cost, a line per configuration."""
    return table_of(
        "What faults cost", FAULTS, costs, lambda cost: cost.group.rows, lambda cost: bool(cost.missing)
    )
