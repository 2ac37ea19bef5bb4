"""Chart: one figure as a Vega-Lite specification, and what the page may do with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.theme import config

Spec = dict[str, Any]

WIDTH = 420  # pixels of the plot in half of the page's width
FULL_WIDTH = 940
HALF_PAGE = 580  # pixels of a figure with its axes and names
PAGE = 1180
# Names are wider in some readers' fonts than in the one in which a figure is measured.
PADDING = {"left": 28, "top": 5, "bottom": 5, "right": 24}
HIDDEN = "hidden"  # the parameter that holds the series which the reader has switched off
VISIBLE = {"filter": f"indexof({HIDDEN}, datum.series) < 0"}


@dataclass(frozen=True)
class Chart:
    """A figure.

    wide: needs the page's width. log_axis: the axis that the reader may switch between linear and
    logarithmic; None if there is no use for it.
    """

    spec: Spec
    wide: bool = False
    log_axis: Literal["x", "y"] | None = None

    @property
    def heading(self) -> str:
        """Its title; empty if it has none."""
        title = self.spec.get("title", "")
        return str(title.get("text", "") if isinstance(title, dict) else title)

    @property
    def without_heading(self) -> Spec:
        """The specification for a page, which shows the heading above the figure. A subtitle stays."""
        title = self.spec.get("title")
        rest = {name: value for name, value in self.spec.items() if name != "title"}
        if isinstance(title, dict) and title.get("subtitle"):
            return {**rest, "title": {**title, "text": ""}}
        return rest

    @classmethod
    def of(
        cls, drawn: alt.TopLevelMixin, wide: bool = False, log_axis: Literal["x", "y"] | None = None
    ) -> Chart:
        """The figure that Altair describes, of charts of `data_of` or `chart_of`.

        The reader can hide series: records with a field `series` obey the parameter `hidden`.
        """
        spec = {**drawn.to_dict(validate=False), "background": None, "config": config()}
        names: dict[str, str] = {}
        _add_data(spec, names)
        datasets = {name: json.loads(records) for records, name in names.items()}
        if any("series" in record for records in datasets.values() for record in records[:1]):
            spec["params"] = [*spec.get("params", []), {"name": HIDDEN, "value": []}]
        return cls({**spec, "datasets": datasets}, wide, log_axis)


def _add_data(view: Any, names: dict[str, str]) -> None:
    """Name the data of a view and of the views in it, and let them obey `hidden`.

    The filter belongs to the view that has the data: Vega-Lite does not pass it to views with data of their
    own inside it.

    Args:
        names: the names of data, by their records as JSON.
    """
    if isinstance(view, list):
        for each in view:
            _add_data(each, names)
    if not isinstance(view, dict):
        return
    if "name" in (data := view.get("data") or {}):
        written = data["name"]
        view["data"] = {"name": names.setdefault(written, f"data-{len(names)}")}
        if any("series" in record for record in json.loads(written)[:1]):
            view["transform"] = [VISIBLE, *view.get("transform", [])]
    for inner in ("layer", "hconcat", "vconcat", "spec"):
        _add_data(view.get(inner), names)


def data_of(records: Sequence[Mapping[str, Any]]) -> alt.NamedData:
    """These records, which the specification holds in the end.

    Altair copies all records whenever charts are composed, but not a name.
    """
    return alt.NamedData(name=json.dumps([dict(record) for record in records], ensure_ascii=False))


def chart_of(records: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these records."""
    return alt.Chart(data_of(records))


def in_lines(names: Mapping[str, Sequence[str]]) -> str:
    """A `labelExpr` that writes each label of an axis or a facet as these lines."""
    lines = {name: list(of) if len(of) > 1 else of[0] for name, of in names.items()}
    return f"({json.dumps(lines, ensure_ascii=False)})[datum.label]"


def layered(*layers: alt.Chart) -> alt.LayerChart:
    """These charts over each other, the first one at the back."""
    return alt.LayerChart(layer=list(layers))


def panel_header(titles: Mapping[str, Sequence[str]]) -> alt.Header:
    """Headings of a facet by series: these lines, at the left edge of each panel."""
    return alt.Header(
        labelExpr=in_lines(titles),
        labelAnchor="start",
        labelLineHeight=14,
        labelPadding=4,
        labelFontSize=11,
    )
