"""report.html: the whole comparison in one self-contained file, without network access.

The page is complete without scripts. page.js makes figures interactive, sorts and filters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.report import formats
from orchestrator.report.figures.theme import config, css_variables
from orchestrator.report.figures.vega import inline, packed
from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.published import published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import Row
from orchestrator.report.plots import Plot
from orchestrator.report.quantities.containers import containers, single_container
from orchestrator.report.render.chapters import FirstOfKind
from orchestrator.report.render.environments import environments
from orchestrator.report.render.filters import chips, filters
from orchestrator.report.render.page import Page
from orchestrator.report.render.questions import interactive
from orchestrator.report.render.runs import runs
from orchestrator.report.render.summary import HOW_TO_OPEN
from orchestrator.report.render.terms import TERMS, SectionTerms
from orchestrator.report.render.workloads import AS_STATED
from orchestrator.report.renderer import Drawings

FEW_RUNS = 10  # whose table is open at first
SOURCES = Path(__file__).parent


def render(page: Page, comparison: Comparison, plots: Sequence[Plot], drawings: Drawings) -> str:
    """The page's text. Everything that comes from files is escaped.

    drawings: the drawings of the plots, in their order.
    """
    environment = Environment(
        loader=FileSystemLoader(SOURCES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    svgs = {plot.name: svg for plot, svg in zip(plots, drawings.svgs, strict=True)}
    light, dark = css_variables()
    return environment.get_template("template.html.j2").render(
        **{field.name: getattr(page, field.name) for field in fields(page)},
        chips=chips(comparison.groups),
        filters=filters(comparison),
        as_stated=AS_STATED,
        anchor_of=FirstOfKind(),
        drawing=lambda figure: Markup(inline(svgs[figure.name], str(escape(figure.alt)))),
        runs_of=_runs_of,
        published_speedups=any(line.published_speedup for line in published_lines(comparison)),
        runs=runs(comparison),
        single_container=any(single_container(row) and containers(row) for row in comparison.rows),
        environments=environments(comparison),
        absent=formats.ABSENT,
        how_to_open=HOW_TO_OPEN,
        few_runs=FEW_RUNS,
        terms_of_report=TERMS,
        section_terms=SectionTerms,
        light=Markup(light),
        dark=Markup(dark),
        figures=Markup(packed(_json({"config": config(), "figures": interactive(plots)}))),
        style=_source("report.css"),
        script=_source("page.js"),
        library=Markup(drawings.library),
    )


def _source(name: str) -> Markup:
    return Markup((SOURCES / name).read_text(encoding="utf-8"))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _runs_of(finding: Finding) -> list[tuple[str, list[Row]]]:
    """The finding's runs, grouped by configuration."""
    rows_by_name: dict[str, list[Row]] = {}
    for row in finding.rows:
        parts = [row.series, row.partitioner_label, row.shape.label, *row.conditions]
        rows_by_name.setdefault(" · ".join(filter(None, parts)), []).append(row)
    return list(rows_by_name.items())
