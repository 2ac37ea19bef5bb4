"""Chart: one figure as a Vega-Lite specification, and what the page may do with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import altair as alt

from orchestrator.report.figures.vega import Spec, spec_of

WIDTH = 420  # pixels of the plot in half of the page's width
FULL_WIDTH = 940
HALF_PAGE = 580  # pixels of a figure with its axes and names
PAGE = 1180
# Names are wider in some readers' fonts than in the one in which a figure is measured.
PADDING = {"left": 28, "top": 5, "bottom": 5, "right": 24}
Drawn = alt.LayerChart | alt.FacetChart | alt.HConcatChart
Filtered = TypeVar("Filtered", bound=alt.TopLevelMixin)
HIDDEN = "hidden"  # the parameter that holds the series which the reader has switched off


@dataclass(frozen=True)
class Chart:
    """A figure.

    wide: needs the page's width. log_axis: the axis that the reader may switch between linear and
    logarithmic; None if there is no use for it.
    """

    spec: Spec
    wide: bool = False
    log_axis: Literal["x", "y"] | None = None

    @classmethod
    def of(
        cls,
        drawn: alt.TopLevelMixin,
        wide: bool = False,
        log_axis: Literal["x", "y"] | None = None,
    ) -> Chart:
        """The figure that Altair describes."""
        return cls(spec_of(drawn), wide, log_axis)


def switchable(drawn: Drawn) -> Drawn:
    """The chart with the parameter by which the reader hides series. `without_hidden` obeys it."""
    shown: Drawn = drawn.add_params(alt.param(name=HIDDEN, value=[]))
    return shown


def without_hidden(drawn: Filtered) -> Filtered:
    """The chart without the series that the reader has switched off. Its records have a field `series`.

    The filter belongs to the chart that holds the data: Vega-Lite does not pass it to others inside.
    """
    return drawn.transform_filter(f"indexof({HIDDEN}, datum.series) < 0")


def chart_of(records: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these records, which the specification holds."""
    return alt.Chart(alt.InlineData(values=[dict(record) for record in records]))


def in_lines(names: Mapping[str, Sequence[str]]) -> str:
    """A `labelExpr` that writes each label of an axis or a facet as these lines."""
    lines = {name: list(of) if len(of) > 1 else of[0] for name, of in names.items()}
    return f"({json.dumps(lines, ensure_ascii=False)})[datum.label]"


def layered(*layers: alt.Chart) -> alt.LayerChart:
    """These charts over each other, the first one at the back."""
    return alt.LayerChart(layer=list(layers))
