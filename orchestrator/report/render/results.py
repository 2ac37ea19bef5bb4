"""The sections with the tables of configurations, by workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities.containers import containers
from orchestrator.report.quantities.model_partition import is_partitioned
from orchestrator.report.render.columns import FAULTS, columns_of
from orchestrator.report.render.tables import Column, table_of, words
from orchestrator.report.render.tree import Block, Fold, Heading, Section, texts
from orchestrator.report.render.workloads import workload_names
from orchestrator.report.topics.faults import fault_costs

ABOUT = yaml.safe_load((Path(__file__).parent / "about.yml").read_text(encoding="utf-8"))


class _Chapter(NamedTuple):
    """The configurations of a workload. before: columns that come first in every table."""

    label: str
    conditions: str
    groups: Sequence[Group]
    before: Sequence[Column[Group]] = ()

    def table(self, title: str, columns: Sequence[Column[Group]], groups: Sequence[Group]) -> Block:
        return table_of(
            f"{title}, {self.label}",
            [*self.before, *columns],
            groups,
            lambda group: group.rows,
            lambda group: "" if group.ok else "failed",
            groups[0].first.clock,
        )


# Which of the configurations that are ok have a line, in sections whose table has the same name in ORDER.
_WITH_LINE: dict[str, Callable[[list[Group]], list[Group]]] = {
    "model-partitioning": lambda ok: ok if is_partitioned(ok) else [],
    "certificates": lambda ok: [group for group in ok if any(row.node_samples for row in group.ok_rows)],
    "containers": lambda ok: [group for group in ok if any(map(containers, group.ok_rows))],
}


def result_sections(comparison: Comparison, claims: Claims) -> Iterator[Section]:
    """The results, and what there is beside them."""
    chapters, about = _chapters(comparison), ABOUT["results"]["about"]
    columns = columns_of("results", speedup_intervals(comparison, claims))
    blocks = [*texts(comparison.record.description, kind="description"), *texts(about)]
    for each in chapters:
        table = each.table("Results", columns, each.groups)
        blocks += [Heading(each.label), *texts(each.conditions, marked=True), table]
    yield Section("results", "Results", blocks, listed=True)
    if costs := fault_costs(comparison):
        title, about = ABOUT["faults"]["title"], ABOUT["faults"]["about"]
        table = table_of(
            title,
            FAULTS,
            costs,
            lambda cost: cost.group.rows,
            lambda cost: "failed" if cost.missing else "",
        )
        yield Section("faults", title, [*texts(about), table])
    for name, with_line in _WITH_LINE.items():
        title, folded, about = (ABOUT[name][part] for part in ("title", "folded", "about"))
        blocks = []
        for each in chapters:
            if shown := with_line([group for group in each.groups if group.ok]):
                blocks += [Heading(each.label), each.table(title, columns_of(name), shown)]
        if blocks:
            opened = len(chapters) == 1 and name != "certificates"
            yield Section(name, title, [*texts(about), Fold(folded, blocks, opened, "table")])


def _chapters(comparison: Comparison) -> list[_Chapter]:
    """One for each workload; one for all if each has a single configuration."""
    parts = [(workload, comparison.groups_in(workload)) for workload in comparison.workloads]
    if len(parts) > 1 and all(len(groups) == 1 for _, groups in parts):
        names = workload_names(comparison.workloads)
        column: Column[Group] = words("workload", "Workload", lambda group: names.of(group.workload))
        together = [group for _, groups in parts for group in groups]
        return [_Chapter(names.shared or "all workloads", "", together, [column])]
    return [
        _Chapter(workload.label, stated_conditions(comparison.view(workload)), groups)
        for workload, groups in parts
    ]
