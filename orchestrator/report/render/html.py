"""report.html: the whole comparison in one self-contained file, without network access.

The page is complete without scripts. page.js makes figures interactive, sorts and filters.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.report import formats
from orchestrator.report.figures import Plot
from orchestrator.report.figures.theme import config, css_variables
from orchestrator.report.figures.vega import scripts
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.containers import containers, single_container
from orchestrator.report.metrics.fairness import stated_conditions
from orchestrator.report.metrics.faults import FaultCost, fault_costs
from orchestrator.report.metrics.model_partition import is_partitioned
from orchestrator.report.metrics.published import differences, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.render.columns import (
    CERTIFICATES,
    CONTAINERS,
    FAULTS,
    GROUPS,
    MODEL_PARTITION,
    PUBLISHED,
    Column,
    run_label,
)
from orchestrator.report.render.environments import environments
from orchestrator.report.render.filters import chips, filters
from orchestrator.report.render.legend import legend
from orchestrator.report.render.questions import interactive, parts, questions
from orchestrator.report.render.runs import runs
from orchestrator.report.render.summary import HOW_TO_OPEN, one_line, seeds_line
from orchestrator.report.render.tables import Table, table_of, table_of_groups
from orchestrator.report.render.terms import TERMS, SectionTerms
from orchestrator.report.render.workloads import AS_STATED, workload_names
from orchestrator.report.verdict import evidence, verdicts
from orchestrator.results.times import time_line

SOURCES = Path(__file__).parent


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


def render(comparison: Comparison, findings: Sequence[Finding], plots: Sequence[Plot]) -> str:
    """The page's text. Everything that comes from files is escaped."""
    environment = Environment(
        loader=FileSystemLoader(SOURCES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    light, dark = css_variables()
    names = workload_names(comparison.workloads)
    published, costs = published_lines(comparison), fault_costs(comparison)
    chapters = chapters_of(comparison)
    return environment.get_template("template.html.j2").render(
        record=comparison.record,
        summary=one_line(comparison),
        seeds=seeds_line(comparison),
        verdicts=verdicts(comparison, findings),
        evidence=evidence(comparison, findings),
        chips=chips(comparison.groups),
        filters=filters(comparison),
        names=names,
        as_stated=AS_STATED,
        anchor_of=FirstOfKind(),
        questions=questions(comparison, findings, plots, names),
        cautions=parts([finding for finding in findings if finding.caution], names),
        runs_of=_runs_of,
        published=table_of("Published and measured", PUBLISHED, published) if published else None,
        published_speedups=any(line.published_speedup for line in published),
        differences=differences(comparison),
        chapters=chapters,
        fault_costs=fault_table(costs) if costs else None,
        legend=legend(comparison.groups),
        runs=runs(comparison),
        times=time_line(row.wall.result for row in comparison.rows) if comparison.rows else "",
        single_container=any(single_container(row) and containers(row) for row in comparison.rows),
        environments=environments(comparison),
        absent=formats.ABSENT,
        how_to_open=HOW_TO_OPEN,
        terms_of_report=TERMS,
        section_terms=SectionTerms,
        light=Markup(light),
        dark=Markup(dark),
        figures=Markup(_packed(_json({"config": config(), "figures": interactive(plots)}))),
        style=_source("report.css"),
        script=_source("page.js"),
        library=Markup(_packed(scripts())),
    )


def _source(name: str) -> Markup:
    return Markup((SOURCES / name).read_text(encoding="utf-8"))


def _packed(text: str) -> str:
    """The text as gzip in base64: most of the page would be Vega and the data of figures otherwise."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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


def _runs_of(finding: Finding) -> list[tuple[str, list[Row]]]:
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
