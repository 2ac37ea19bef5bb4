"""A page as one self-contained HTML file, without network access.

The page is complete without scripts. page.js makes figures interactive, sorts and filters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.report.figures.theme import config, css_variables
from orchestrator.report.figures.vega import inline, packed
from orchestrator.report.plots import Plot
from orchestrator.report.render.summary import HOW_TO_OPEN
from orchestrator.report.render.terms import Terms
from orchestrator.report.render.tree import Drawing, Page
from orchestrator.report.renderer import Drawings

SOURCES = Path(__file__).parent
PLAIN = Drawings((), "")  # a page without figures, which needs no scripts


def render(page: Page, plots: Sequence[Plot] = (), drawings: Drawings = PLAIN) -> str:
    """The page's text. Everything that comes from files is escaped.

    drawings: the drawings of the plots, in their order.
    """
    terms = Terms()
    environment = Environment(
        loader=FileSystemLoader(SOURCES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = terms.mark
    environment.filters["form"] = lambda part: type(part).__name__.lower()
    svgs = {plot.name: svg for plot, svg in zip(plots, drawings.svgs, strict=True)}
    figures = {
        plot.name: {
            "spec": {name: value for name, value in plot.spec.items() if name != "config"},
            "log": plot.chart.log_axis,
        }
        for plot in plots
    }
    light, dark = css_variables()

    def svg(figure: Drawing) -> Markup:
        return Markup(inline(svgs[figure.name], str(escape(figure.alt))))

    return environment.get_template("page.html.j2").render(
        page=page,
        scripted=drawings is not PLAIN,
        begin_terms=terms.begin,
        svg=svg,
        how_to_open=HOW_TO_OPEN,
        light=Markup(light),
        dark=Markup(dark),
        figures=Markup(packed(_json({"config": config(), "figures": figures}))),
        style=_source("report.css"),
        script=_source("page.js"),
        library=Markup(drawings.library),
    )


def _source(name: str) -> Markup:
    return Markup((SOURCES / name).read_text(encoding="utf-8"))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
