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
from orchestrator.report.render.tree import Page
from orchestrator.report.renderer import Drawings

PLAIN = Drawings((), "")  # a page without figures, which needs no scripts


def render(page: Page, plots: Sequence[Plot] = (), drawings: Drawings = PLAIN) -> str:
    """The page's text. Everything that comes from files is escaped.

    drawings: the drawings of the plots, in their order.
    """
    sources, terms = Path(__file__).parent, Terms()
    environment = Environment(
        loader=FileSystemLoader(sources),
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
    data = json.dumps({"config": config(), "figures": figures}, ensure_ascii=False, allow_nan=False)
    light, dark = css_variables()
    return environment.get_template("page.html.j2").render(
        page=page,
        scripted=drawings is not PLAIN,
        begin_terms=terms.begin,
        svg=lambda figure: Markup(inline(svgs[figure.plot.name], str(escape(figure.alt)))),
        how_to_open=HOW_TO_OPEN,
        light=Markup(light),
        dark=Markup(dark),
        style=Markup((sources / "report.css").read_text(encoding="utf-8")),
        figures=Markup(packed(data)),
        library=Markup(drawings.library),
        script=Markup((sources / "page.js").read_text(encoding="utf-8")),
    )
