"""report.html: the whole comparison in one file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.report import formats
from orchestrator.report.figures import Plot
from orchestrator.report.figures.svg import inline
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics import published
from orchestrator.report.metrics.containers import containers, held_by_one
from orchestrator.report.metrics.model_partition import divides
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.places import limits_of
from orchestrator.report.model.rows import NO_SERIAL, OTHER_EPOCHS, Row
from orchestrator.report.render.columns import (
    CERTIFICATES,
    CONTAINERS,
    DIVIDED,
    GROUPS,
    RUNS,
    Cell,
    Column,
    filled,
    who,
)
from orchestrator.report.render.legend import legend
from orchestrator.report.render.summary import STATES, one_line


@dataclass(frozen=True)
class Figure:
    """A plot as the page shows it. svg: markup of ours, safe as it is."""

    caption: str
    svg: Markup
    wide: bool


@dataclass(frozen=True)
class Part:
    """Findings on one work, by topic. work: empty where they are about all, or the sweep has only one."""

    work: str
    topics: dict[str, list[Finding]]


@dataclass(frozen=True)
class Chapter:
    """What the page shows of one work. heading: empty where the sweep has only one."""

    heading: str
    figures: list[Figure]
    columns: list[Column[Group]]
    groups: list[Group]
    divided_columns: list[Column[Group]]
    divided: list[Group]
    certificate_columns: list[Column[Group]]
    certified: list[Group]
    container_columns: list[Column[Group]]
    contained: list[Group]


@dataclass(frozen=True)
class RunLine:
    """A run in the table of runs: cells if it is ok, otherwise a status and a cause."""

    key: str
    name: str
    detail: str
    nodes: str
    seed: str
    status: str
    cause: str
    cells: list[Cell]
    notes: list[int]  # numbers of footnotes
    spec: str  # JSON
    phases: list[tuple[str, str]]


def render(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]) -> str:
    """The page's text. Whatever comes from files is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    notes = _footnotes(comparison)
    chapters = _chapters(comparison, plots)
    columns = filled(RUNS, comparison.rows)
    published_lines = published.lines(comparison)
    return environment.get_template("template.html.j2").render(
        record=comparison.record,
        summary=one_line(comparison),
        findings=_parts(findings, "finding"),
        cautions=_parts(findings, "caution"),
        evidence=_evidence,
        published=published_lines,
        published_columns=filled(published.COLUMNS, published_lines),
        differences=published.differences(comparison),
        chapters=chapters,
        legend=legend(comparison.groups),
        divided=any(chapter.divided for chapter in chapters),
        contained=any(chapter.contained for chapter in chapters),
        run_columns=columns,
        runs=_runs(comparison, columns, notes),
        notes=notes,
        held_by_one=any(held_by_one(row) and containers(row) for row in comparison.rows),
        made_with=_made_with(comparison),
        absent=formats.ABSENT,
    )


def _parts(findings: Sequence[Finding], kind: str) -> list[Part]:
    parts: dict[Workload | None, Part] = {}
    for finding in findings:
        if finding.kind == kind:
            work = finding.work.label if finding.work else ""
            part = parts.setdefault(finding.work, Part(work, {}))
            part.topics.setdefault(finding.topic, []).append(finding)
    return list(parts.values())


def _chapters(comparison: Comparison, plots: Sequence[Plot]) -> list[Chapter]:
    works: list[Workload] = comparison.works
    chapters = []
    for work in works:
        groups = [group for group in comparison.groups if group.first.trains and group.work == work]
        figures = [
            Figure(
                plot.caption,
                Markup(inline(plot.svg, str(escape(f"{plot.title}. {plot.caption}")))),
                plot.wide,
            )
            for plot in plots
            if plot.work == work
        ]
        contained = [group for group in groups if any(map(containers, group.ok_rows))]
        divided = [group for group in groups if group.ok] if divides(groups) else []
        certified = [group for group in groups if any(row.node_samples for row in group.ok_rows)]
        chapters.append(
            Chapter(
                heading=work.label,
                figures=figures,
                columns=filled(GROUPS, groups),
                groups=groups,
                divided_columns=filled(DIVIDED, divided),
                divided=divided,
                certificate_columns=filled(CERTIFICATES, certified),
                certified=certified,
                container_columns=filled(CONTAINERS, contained),
                contained=contained,
            )
        )
    return chapters


def _evidence(finding: Finding) -> list[tuple[str, list[Row]]]:
    """The finding's runs, those that differ only by seed under one name."""
    cells: dict[str, list[Row]] = {}
    for row in finding.rows:
        parts = [who(row), row.partitioner_label, row.shape.label, row.where]
        cells.setdefault(" · ".join(filter(None, parts)), []).append(row)
    return list(cells.items())


def _footnotes(comparison: Comparison) -> list[str]:
    """What was flagged in any run, each once."""
    return list(dict.fromkeys(note for row in comparison.rows for note in _notes(row)))


def _notes(row: Row) -> list[str]:
    return row.result.flags + [why for why in (NO_SERIAL, OTHER_EPOCHS) if row.no_speedup == why]


def _runs(comparison: Comparison, columns: Sequence[Column[Row]], notes: Sequence[str]) -> list[RunLine]:
    rows = {row.key: row for row in comparison.rows}
    lines = []
    for key in comparison.record.keys:
        row = rows.get(key)
        if row is None:
            lines.append(RunLine(key, key, "", "", "", STATES["pending"], "", [], [], "", []))
            continue
        lines.append(
            RunLine(
                key=key,
                name=who(row),
                detail=" · ".join(filter(None, [row.partitioner_label, row.where])),
                nodes=row.shape.short,
                seed=str(row.seed),
                status=STATES[row.status],
                cause=row.cause or "",
                cells=[column.cell(row) for column in columns] if row.ok else [],
                notes=[notes.index(note) + 1 for note in _notes(row)],
                spec=json.dumps(row.run.model_dump(mode="json"), indent=2, ensure_ascii=False),
                phases=[(phase, formats.seconds(value)) for phase, value in row.seconds.items()],
            )
        )
    return lines


def _made_with(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Machine, software and limits of a node, place by place; a name where there are several places."""
    places: dict[str, list[Row]] = {}
    for row in comparison.rows:
        places.setdefault(row.where, []).append(row)
    if len(places) < 2:  # then sweep.json says it for all, also where nothing has a result yet
        known = dict.fromkeys(places or [""], comparison.record.environment)
    else:
        known = {where: rows[-1].result.environment for where, rows in places.items()}
    made = []
    for where, environment in known.items():
        limits = limits_of(places.get(where, []))
        held = [("limits of a node", ", ".join(limits))] if limits else []
        made.append((where, _facts(environment) + held))
    return [(where, facts) for where, facts in made if facts]


def _facts(environment: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values, mappings inside mappings flattened with dots."""
    facts: list[tuple[str, str]] = []
    for name, value in environment.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{prefix}{name}.")
        else:
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            facts.append((f"{prefix}{name}", formats.ABSENT if value is None else written))
    return facts
