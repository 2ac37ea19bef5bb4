"""The data of a figure as a table, from its specification, for readers who do not see the figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report import formats
from orchestrator.report.render.tree import Block, Cell, Head, Line, Table, texts

MOST_LINES = 60
Fields = dict[str, tuple[str, str]]  # field of the records -> its title and its number format


def figure_data(spec: Mapping[str, Any], label: str) -> list[Block]:
    """The records that the figure draws: the fields that its tooltips name.

    Several tables if the tooltips of a figure name different fields of different records.
    """
    records_of: Mapping[str, list[Mapping[str, Any]]] = spec.get("datasets", {})
    named: dict[str, Fields] = {}
    for data, encoding in _views(spec, "", {}):
        if data in records_of:
            named.setdefault(data, {}).update(_tooltip(encoding))
    tables: dict[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], None] = {}
    for data, fields in named.items():
        written = dict.fromkeys(
            tuple(_written(record.get(name), form) for name, (_, form) in fields.items())
            for record in records_of[data]
        )
        if fields:
            tables[tuple(title for title, _ in fields.values()), tuple(written)] = None
    blocks: list[Block] = []
    for number, (heads, lines) in enumerate(tables, 1):
        name = f"Data{f' {number}' if len(tables) > 1 else ''}: {label}"
        shown = [Line([*map(Cell, line)]) for line in lines[:MOST_LINES]]
        blocks.append(Table(f"Data: {label}", [*map(Head, heads)], shown, "data", name))
        if (more := len(lines) - MOST_LINES) > 0:
            blocks += texts(
                f"{more} more lines are not shown; results.csv and epochs.csv have all numbers."
            )
    return blocks


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


def _title(channel: Mapping[str, Any]) -> str:
    places = [channel, channel.get("axis"), channel.get("legend"), channel.get("header")]
    titles = [place["title"] for place in places if isinstance(place, dict) and place.get("title")]
    title = titles[0] if titles else channel["field"].replace("_", " ")
    return " ".join(title) if isinstance(title, list) else str(title)


def _written(value: Any, form: str) -> str:
    """A value as the figure's tooltip shows it. form: d3's, which Python shares but for `~` and `s`."""
    if value is None:
        return formats.ABSENT
    if not isinstance(value, float):
        return str(value)
    try:
        return format(value, form.replace("~", "")) if form else formats.significant(value)
    except ValueError:
        return formats.significant(value)
