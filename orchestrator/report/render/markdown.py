"""report.md: the report for a terminal, a pull request or a lab book."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from orchestrator.report.figures import Plot
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics import published
from orchestrator.report.metrics.containers import containers
from orchestrator.report.metrics.model_partition import divides
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.render.columns import CONTAINERS, DIVIDED, GROUPS, Cell, Column, filled
from orchestrator.report.render.legend import legend
from orchestrator.report.render.summary import STATES, one_line

T = TypeVar("T")

MOST_KEYS = 12  # of a finding's runs; results.csv has them all
# What would be taken for markup, or end a table's cell.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "[": "\\[", "`": "\\`", "\\": "\\\\"}
)


def render(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]) -> str:
    """The file's text. plots: linked as plots/<name>.svg."""
    record = comparison.record
    parts = [f"# {_plain(record.name)}"]
    if record.description:
        parts.append(_plain(record.description))
    parts.append(_plain(one_line(comparison)))
    for title, kind in (("Findings", "finding"), ("Mind this", "caution")):
        lines = [_finding(finding) for finding in findings if finding.kind == kind]
        if lines:
            parts += [f"## {title}", "\n".join(lines)]
    published_lines = published.lines(comparison)
    if published_lines:
        parts += ["## Published and measured"]
        parts += [_table(filled(published.COLUMNS, published_lines), published_lines)]
    if record.lab:
        parts += [] if published_lines else ["## The published experiment"]
        facts = [("Source", record.lab.source), *published.differences(comparison)]
        parts += ["\n".join(f"- {name}: {_plain(fact)}" for name, fact in facts)]
    for work in comparison.works:
        groups = [group for group in comparison.groups if group.first.trains and group.work == work]
        parts += [f"## {_plain(work.label)}", _table(filled(GROUPS, groups), groups)]
        if divides(groups) and (divided := [group for group in groups if group.ok]):
            parts += ["The model over the nodes, of the rank that has most:"]
            parts += [_table(filled(DIVIDED, divided), divided)]
        if contained := [group for group in groups if any(map(containers, group.ok_rows))]:
            parts += [
                "By the kernel's counters, per container:",
                _table(filled(CONTAINERS, contained), contained),
            ]
        parts += [f"![{_plain(plot.title)}](plots/{plot.name}.svg)" for plot in plots if plot.work == work]
    if entries := legend(comparison.groups):
        parts += [
            "## Strategies",
            "\n".join(f"- {_code(e.name)}: {_plain(e.does)} {_code(e.file)}" for e in entries),
        ]
    undone = [
        f"- {_code(row.key)} {STATES[row.status]}: {_plain(row.cause or '')}" for row in comparison.failed
    ]
    undone += [f"- {_code(key)} {STATES['pending']}" for key in comparison.pending]
    if undone:
        parts += ["## Not ok", "\n".join(undone)]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Finding) -> str:
    keys = [_code(row.key) for row in finding.rows]
    if len(keys) > MOST_KEYS:
        keys = [*keys[:MOST_KEYS], f"and {len(keys) - MOST_KEYS} more"]
    work = f" ({_plain(finding.work.label)})" if finding.work else ""
    runs = f"  \n  <sub>{', '.join(keys)}</sub>" if keys else ""
    return f"- **{finding.topic}**{work}: {_plain(finding.text)}{runs}"


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
    """A run key, in which nothing is markup but the mark that would end it."""
    return f"`{' '.join(text.split()).replace('`', '')}`"


def _plain(text: str) -> str:
    """Text from a file as one line that means only itself."""
    return " ".join(text.split("\n")).translate(_ESCAPES).strip()
