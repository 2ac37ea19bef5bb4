"""The data of a figure as a table, from its specification: for readers who do not see the figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.report import formats

MOST_LINES = 60
Fields = dict[str, tuple[str, str]]  # field of the records -> its title and its number format


@dataclass(frozen=True)
class FigureData:
    """The table. more: how many lines are left out."""

    heads: list[str]
    lines: list[list[str]]
    more: int


def figure_data(spec: Mapping[str, Any]) -> FigureData | None:
    """The records that the figure draws: the fields that its tooltips name, otherwise those of its axes.

    Of several sets of records, the one with most named fields. None without records.
    """
    records_of: Mapping[str, list[Mapping[str, Any]]] = spec.get("datasets", {})
    fields_of: dict[str, tuple[Fields, Fields]] = {}
    for data, encoding in _views(spec, "", {}):
        if data in records_of:
            named, drawn = fields_of.setdefault(data, ({}, {}))
            named.update(_tooltip(encoding))
            drawn.update(_channels(encoding))
    chosen = [(named or drawn, records_of[data]) for data, (named, drawn) in fields_of.items()]
    if not chosen:
        return None
    fields, records = max(chosen, key=lambda pair: (len(pair[0]), len(pair[1])))
    lines = [[_written(record.get(name), form) for name, (_, form) in fields.items()] for record in records]
    unique = [list(line) for line in dict.fromkeys(map(tuple, lines))]
    more = max(0, len(unique) - MOST_LINES)
    return (
        FigureData([title for title, _ in fields.values()], unique[:MOST_LINES], more) if fields else None
    )


def _views(
    spec: Mapping[str, Any], data: str, encoding: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of the records and the encoding of each view. Inner views inherit both."""
    data = spec.get("data", {}).get("name", data)
    facets = spec.get("facet", {})
    facets = {"facet": facets} if "field" in facets else facets
    encoding = {**encoding, **facets, **spec.get("encoding", {})}
    if "mark" in spec:
        yield data, encoding
    inner = [*([spec["spec"]] if "spec" in spec else []), *spec.get("layer", ())]
    for name in ("concat", "hconcat", "vconcat"):
        inner += spec.get(name, ())
    for view in inner:
        yield from _views(view, data, encoding)


def _tooltip(encoding: Mapping[str, Any]) -> Fields:
    tooltip = encoding.get("tooltip", [])
    entries = tooltip if isinstance(tooltip, list) else [tooltip]
    return {
        entry["field"]: (_title(entry), entry.get("format", "")) for entry in entries if "field" in entry
    }


def _channels(encoding: Mapping[str, Any]) -> Fields:
    return {
        channel["field"]: (
            _title(channel),
            channel.get("axis", {}).get("format", "") if channel.get("axis") else "",
        )
        for name, channel in encoding.items()
        if isinstance(channel, dict) and name != "tooltip" and "field" in channel
    }


def _title(channel: Mapping[str, Any]) -> str:
    places = [channel, channel.get("axis"), channel.get("legend"), channel.get("header")]
    titles = [place["title"] for place in places if isinstance(place, dict) and place.get("title")]
    title = titles[0] if titles else channel["field"].replace("_", " ")
    return " ".join(title) if isinstance(title, list) else str(title)


def _written(value: Any, form: str) -> str:
    """A value as the figure's tooltip shows it. form: of d3, which Python shares but for `~` and `s`."""
    if value is None:
        return formats.ABSENT
    if not isinstance(value, float):
        return str(value)
    try:
        return format(value, form.replace("~", "")) if form else formats.significant(value)
    except ValueError:
        return formats.significant(value)
