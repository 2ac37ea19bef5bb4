"""report.html: the whole comparison in one self-contained file, without network access or scripts."""

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
from orchestrator.report.figures.vega import inline
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.containers import containers, single_container
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.metrics.faults import fault_costs
from orchestrator.report.metrics.model_partition import is_partitioned
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.locations import node_limits
from orchestrator.report.model.rows import NO_SERIAL, OTHER_EPOCHS, Row
from orchestrator.report.model.timelines import Timeline
from orchestrator.report.render.columns import (
    CERTIFICATES,
    CONTAINERS,
    FAULTS,
    GROUPS,
    MODEL_PARTITION,
    PUBLISHED,
    RUNS,
    Cell,
    Column,
    filled,
    run_label,
)
from orchestrator.report.render.legend import legend
from orchestrator.report.render.summary import HOW_TO_OPEN, STATES, one_line, seeds_line
from orchestrator.results.times import time_line


@dataclass(frozen=True)
class Figure:
    """A plot on the page. svg: our own markup, not escaped. timelines: whose files are linked."""

    caption: str
    svg: Markup
    wide: bool
    timelines: Sequence[Timeline]


@dataclass(frozen=True)
class Part:
    """Findings on one workload, by topic. workload: empty if they concern all, or if there is only one."""

    workload: str
    topics: dict[str, list[Finding]]


@dataclass(frozen=True)
class Chapter:
    """The page's figures and tables of one workload."""

    heading: str
    conditions: str
    figures: list[Figure]
    columns: list[Column[Group]]
    groups: list[Group]
    partitioned_columns: list[Column[Group]]
    partitioned: list[Group]
    certificate_columns: list[Column[Group]]
    certified: list[Group]
    container_columns: list[Column[Group]]
    contained: list[Group]


@dataclass(frozen=True)
class RunLine:
    """A line in the table of runs: cells if the run is ok, otherwise a status and a cause."""

    key: str
    name: str
    detail: str
    nodes: str
    seed: str
    status: str
    cause: str
    log: str  # in the results directory
    cells: list[Cell]
    notes: list[int]  # numbers of footnotes
    spec: str  # JSON
    phases: list[tuple[str, str]]


def render(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]) -> str:
    """The page's text. Everything that comes from files is escaped."""
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
    published = published_lines(comparison)
    costs = fault_costs(comparison)
    return environment.get_template("template.html.j2").render(
        record=comparison.record,
        summary=one_line(comparison),
        seeds=seeds_line(comparison),
        findings=_parts(findings, caution=False),
        cautions=_parts(findings, caution=True),
        evidence=_evidence,
        published=published,
        published_columns=filled(PUBLISHED, published),
        differences=differences(comparison),
        chapters=chapters,
        fault_costs=costs,
        fault_columns=filled(FAULTS, costs),
        legend=legend(comparison.groups),
        partitioned=any(chapter.partitioned for chapter in chapters),
        contained=any(chapter.contained for chapter in chapters),
        run_columns=columns,
        runs=_runs(comparison, columns, notes),
        times=time_line(row.wall.result for row in comparison.rows) if comparison.rows else "",
        notes=notes,
        single_container=any(single_container(row) and containers(row) for row in comparison.rows),
        environments=environments(comparison),
        absent=formats.ABSENT,
        how_to_open=HOW_TO_OPEN,
    )


def _parts(findings: Sequence[Finding], caution: bool) -> list[Part]:
    parts: dict[Workload | None, Part] = {}
    for finding in findings:
        if finding.caution is caution:
            label = finding.workload.label if finding.workload else ""
            part = parts.setdefault(finding.workload, Part(label, {}))
            part.topics.setdefault(finding.topic, []).append(finding)
    return list(parts.values())


def _chapters(comparison: Comparison, plots: Sequence[Plot]) -> list[Chapter]:
    chapters = []
    for workload in comparison.workloads:
        groups = comparison.groups_in(workload)
        figures = [
            Figure(
                " ".join(filter(None, [plot.caption, plot.note])),
                Markup(inline(plot.svg, str(escape(f"{plot.title}. {plot.caption}")))),
                plot.wide,
                plot.timelines,
            )
            for plot in plots
            if plot.workload == workload
        ]
        contained = [group for group in groups if any(map(containers, group.ok_rows))]
        partitioned = [group for group in groups if group.ok] if is_partitioned(groups) else []
        certified = [group for group in groups if any(row.node_samples for row in group.ok_rows)]
        chapters.append(
            Chapter(
                heading=workload.label,
                conditions=stated_conditions(comparison.view(workload)),
                figures=figures,
                columns=filled(GROUPS, groups),
                groups=groups,
                partitioned_columns=filled(MODEL_PARTITION, partitioned),
                partitioned=partitioned,
                certificate_columns=filled(CERTIFICATES, certified),
                certified=certified,
                container_columns=filled(CONTAINERS, contained),
                contained=contained,
            )
        )
    return chapters


def _evidence(finding: Finding) -> list[tuple[str, list[Row]]]:
    """The finding's runs, grouped by configuration."""
    rows_by_name: dict[str, list[Row]] = {}
    for row in finding.rows:
        parts = [
            run_label(row),
            row.partitioner_label,
            row.shape.label,
            row.link_label,
            row.location,
            row.faults_label,
        ]
        rows_by_name.setdefault(" · ".join(filter(None, parts)), []).append(row)
    return list(rows_by_name.items())


def _footnotes(comparison: Comparison) -> list[str]:
    """All flags of runs, each once."""
    return list(dict.fromkeys(note for row in comparison.rows for note in _notes(row)))


def _notes(row: Row) -> list[str]:
    return row.result.flags + [why for why in (NO_SERIAL, OTHER_EPOCHS) if row.no_speedup == why]


def _runs(comparison: Comparison, columns: Sequence[Column[Row]], notes: Sequence[str]) -> list[RunLine]:
    rows = {row.key: row for row in comparison.rows}
    lines = []
    for key in comparison.record.keys:
        row = rows.get(key)
        if row is None:
            why = comparison.unusable.get(key, "")
            state = STATES["unusable" if why else "pending"]
            lines.append(RunLine(key, key, "", "", "", state, why, "", [], [], "", []))
            continue
        lines.append(
            RunLine(
                key=key,
                name=run_label(row),
                detail=" · ".join(
                    filter(None, [row.partitioner_label, row.link_label, row.location, row.faults_label])
                ),
                nodes=row.shape.short,
                seed=str(row.seed),
                status=STATES[row.status],
                cause=row.cause or "",
                log=row.log or "",
                cells=[column.cell(row) for column in columns] if row.ok else [],
                notes=[notes.index(note) + 1 for note in _notes(row)],
                spec=json.dumps(row.run.model_dump(mode="json"), indent=2, ensure_ascii=False),
                phases=[(phase, formats.seconds(value)) for phase, value in row.seconds.items()],
            )
        )
    return lines


def environments(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Machine, software and node limits of each location, with its name if there are several."""
    rows_at: dict[str, list[Row]] = {}
    for row in comparison.rows:
        rows_at.setdefault(row.location, []).append(row)
    if len(rows_at) < 2:  # then sweep.json describes all, also before the first result
        known = dict.fromkeys(rows_at or [""], comparison.record.environment)
    else:
        known = {location: rows[-1].result.environment for location, rows in rows_at.items()}
    found = []
    for location, environment in known.items():
        limits = node_limits(rows_at.get(location, []))
        enforced = [("node limits", ", ".join(limits))] if limits else []
        found.append((location, _facts(environment) + enforced))
    return [(location, facts) for location, facts in found if facts]


def _facts(environment: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values; nested mappings are flattened with dots."""
    facts: list[tuple[str, str]] = []
    for name, value in environment.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{prefix}{name}.")
        else:
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            facts.append((f"{prefix}{name}", formats.ABSENT if value is None else written))
    return facts
