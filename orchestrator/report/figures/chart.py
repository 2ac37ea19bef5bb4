"""Chart: one figure as a Vega-Lite specification, and what the page may do with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.report.figures.axes import Axis
from orchestrator.report.figures.spec import Spec
from orchestrator.report.figures.theme import config

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
HALF_PAGE = 580  # pixels of a figure with its axes and names
PAGE = 1180
CHARACTER = 7  # pixels of a character of a name, in most fonts
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
        cls,
        view: Spec,
        title: str,
        subtitle: str | Sequence[str] = (),
        *,
        wide: bool = False,
        log_axis: Literal["x", "y"] | None = None,
        axis: Axis | None = None,
    ) -> Chart:
        """The figure of a view, whose records become named datasets.

        The reader can hide series: records with a field `series` obey the parameter `hidden`.

        Args:
            log_axis: the axis that the reader may switch, if `axis` can be both.
        """
        names: dict[str, str] = {}
        spec = {"$schema": SCHEMA, "title": {"text": title, "subtitle": subtitle}, **_named(view, names)}
        datasets = {name: json.loads(records) for records, name in names.items()}
        if any("series" in record for records in datasets.values() for record in records[:1]):
            spec["params"] = [{"name": HIDDEN, "value": []}]
        if log_axis and axis and axis.domains:
            spec["usermeta"] = {"domains": axis.domains}
        else:
            log_axis = None
        return cls({**spec, "background": None, "config": config(), "datasets": datasets}, wide, log_axis)


def _named(view: Any, names: dict[str, str]) -> Any:
    """A view with the names of its records, and of those of the views in it, which obey `hidden`.

    The filter belongs to the view that has the data: Vega-Lite does not pass it to views with data of their
    own inside it.

    Args:
        names: the names of data, by their records as JSON.
    """
    if isinstance(view, list):
        return [_named(each, names) for each in view]
    inner = ("layer", "hconcat", "concat", "spec")
    found = {name: _named(part, names) if name in inner else part for name, part in view.items()}
    if "data" in view:
        records = view["data"]["values"]
        written = json.dumps(records, ensure_ascii=False)
        found["data"] = {"name": names.setdefault(written, f"data-{len(names)}")}
        if any("series" in record for record in records[:1]):
            found["transform"] = [VISIBLE, *view.get("transform", [])]
    return found
