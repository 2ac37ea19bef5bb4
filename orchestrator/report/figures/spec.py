"""Specifications of figures: plain dicts in the words of Vega-Lite, and what makes them short."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
Record = Mapping[str, Any]

TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
TOP_LEGEND = {"title": None, "orient": "top", "symbolType": "square", "offset": 4, "columnPadding": 14}


def data(records: Sequence[Record]) -> Spec:
    """The property of a view that has these records."""
    return {"data": {"values": list(records)}}


def channel(field: str, **more: Any) -> Spec:
    """The encoding of a field by its name and the letter of its type: `mean:Q`."""
    name, _, letter = field.rpartition(":")
    return {"field": name, "type": TYPES[letter], **more}


def layer(
    mark: str,
    style: Mapping[str, Any] | None = None,
    *,
    where: str = "",
    records: Sequence[Record] | None = None,
    tips: Mapping[str, str] | None = None,
    **channels: Spec | str,
) -> Spec:
    """Marks of one kind.

    Args:
        style: properties of the mark.
        where: an expression; records for which it is false have no mark.
        records: its data, if it does not have those of the view around it.
        tips: the fields that a mark shows under the pointer, with their titles.
        channels: what places and looks of marks depend on; a text is short for `channel`.
    """
    encoding: Spec = {
        name: channel(each) if isinstance(each, str) else each for name, each in channels.items()
    }
    if tips:
        encoding["tooltip"] = [channel(f"{field}:N", title=title) for field, title in tips.items()]
    found: Spec = {"mark": {"type": mark, **(style or {})}, "encoding": encoding}
    if where:
        found["transform"] = [{"filter": where}]
    return found if records is None else {**found, **data(records)}


def in_lines(names: Mapping[str, Sequence[str]]) -> str:
    """A `labelExpr` that writes each label of an axis or a facet as these lines."""
    lines = {name: list(of) if len(of) > 1 else of[0] for name, of in names.items()}
    return f"({json.dumps(lines, ensure_ascii=False)})[datum.label]"


def facet(titles: Mapping[str, Sequence[str]]) -> Spec:
    """A panel for each series, with a heading of these lines at its left edge."""
    header = {"labelAnchor": "start", "labelLineHeight": 14, "labelPadding": 4, "labelFontSize": 11}
    header["labelExpr"] = in_lines(titles)
    return channel("series:N", sort=[*titles], title=None, header=header)
