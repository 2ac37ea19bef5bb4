"""report.md: the report for a terminal, a pull request or a lab notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from orchestrator.report.figures import Plot
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.containers import containers
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.metrics.faults import fault_costs
from orchestrator.report.metrics.model_partition import is_partitioned
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.render.columns import (
    CONTAINERS,
    FAULTS,
    GROUPS,
    MODEL_PARTITION,
    PUBLISHED,
    Cell,
    Column,
    filled,
)
from orchestrator.report.render.legend import legend
from orchestrator.report.render.summary import HOW_TO_OPEN, STATES, one_line, seeds_line
from orchestrator.results.times import time_line

T = TypeVar("T")

MAX_KEYS = 12  # of a finding's runs; results.csv lists all
# Characters that are markup, or that end a table cell.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "[": "\\[", "`": "\\`", "\\": "\\\\"}
)


def render(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]) -> str:
    """The file's text. plots: linked as plots/<name>.svg."""
    record = comparison.record
    parts = [f"# {_plain(record.name)}"]
    if record.description:
        parts.append(_plain(record.description))
    parts += filter(None, [_plain(one_line(comparison)), _plain(seeds_line(comparison))])
    for title, caution in (("Findings", False), ("Cautions", True)):
        lines = [_finding(finding) for finding in findings if finding.caution is caution]
        if lines:
            parts += [f"## {title}", "\n".join(lines)]
    published = published_lines(comparison)
    if published:
        parts += ["## Published and measured"]
        parts += [_table(filled(PUBLISHED, published), published)]
    if record.lab:
        parts += [] if published else ["## The published experiment"]
        facts = [("Source", record.lab.source), *differences(comparison)]
        parts += ["\n".join(f"- {name}: {_plain(fact)}" for name, fact in facts)]
    if costs := fault_costs(comparison):
        parts += ["## What faults cost", _table(filled(FAULTS, costs), costs)]
    for workload in comparison.workloads:
        groups = comparison.groups_in(workload)
        parts += [f"## {_plain(workload.label)}"]
        parts += filter(None, [_plain(stated_conditions(comparison.view(workload)))])
        parts += [_table(filled(GROUPS, groups), groups)]
        if is_partitioned(groups) and (partitioned := [group for group in groups if group.ok]):
            parts += ["Model and memory, of the rank that holds most:"]
            parts += [_table(filled(MODEL_PARTITION, partitioned), partitioned)]
        if contained := [group for group in groups if any(map(containers, group.ok_rows))]:
            parts += [
                "Containers, counted by the kernel:",
                _table(filled(CONTAINERS, contained), contained),
            ]
        for plot in plots:
            if plot.workload == workload:
                parts += [f"![{_plain(plot.title)}](plots/{plot.name}.svg)"]
                parts += filter(None, [_plain(plot.note)])
                if plot.timelines:
                    parts += [HOW_TO_OPEN, "\n".join(map(_timeline, plot.timelines))]
    if entries := legend(comparison.groups):
        parts += [
            "## Strategies",
            "\n".join(f"- {_code(e.name)}: {_plain(e.summary)} {_code(e.file)}" for e in entries),
        ]
    if comparison.rows:
        parts += [_plain(time_line(row.wall.result for row in comparison.rows)) + "."]
    missing = [
        f"- {_code(row.key)} {STATES[row.status]}: {_plain(row.cause or '')}"
        + (f" (log: {_code(row.log)})" if row.log else "")
        for row in comparison.failed
    ]
    for key in comparison.pending:
        why = comparison.unusable.get(key)
        missing += [
            f"- {_code(key)} {STATES['unusable']}: {_plain(why)}"
            if why
            else f"- {_code(key)} {STATES['pending']}"
        ]
    if missing:
        parts += ["## Failed and pending runs", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def _timeline(timeline: Timeline) -> str:
    return f"- [{_plain(timeline.name)}]({timeline.link})"


def _finding(finding: Finding) -> str:
    keys = [_code(row.key) for row in finding.rows]
    if len(keys) > MAX_KEYS:
        keys = [*keys[:MAX_KEYS], f"and {len(keys) - MAX_KEYS} more"]
    workload = f" ({_plain(finding.workload.label)})" if finding.workload else ""
    runs = f"  \n  <sub>{', '.join(keys)}</sub>" if keys else ""
    return f"- **{finding.topic}**{workload}: {_plain(finding.text)}{runs}"


def _table(columns: Sequence[Column[T]], items: Sequence[T]) -> str:
    lines = [
        [column.title for column in columns],
        ["--:" if column.number else "---" for column in columns],
    ]
    lines += [[_cell(column.cell(item)) for column in columns] for item in items]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    return _plain(cell.text) + (f" ({_plain(cell.detail)})" if cell.detail else "")


def _code(text: str) -> str:
    """A run key as code, without the backticks that would end it."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


def _plain(text: str) -> str:
    """Text from a file as one line, with markup escaped."""
    return " ".join(text.split("\n")).translate(_ESCAPES).strip()
