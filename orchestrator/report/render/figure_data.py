"""The data of a figure as a table, from its specification, for readers who do not see the figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.report import formats
from orchestrator.report.figures.spec import Spec
from orchestrator.report.render.tree import Block, Cell, Head, Line, Table, texts

MOST_LINES = 60


def figure_data(spec: Spec, label: str) -> list[Block]:
    """The records that the figure draws: the fields that its tooltips name.

    Several tables if the tooltips of a figure name different fields of different records.
    """
    named: dict[str, dict[str, str]] = {}  # the titles of fields, by name of the records
    for data, encoding in _marks(spec, ""):
        titles = {each["field"]: each["title"] for each in encoding.get("tooltip", ())}
        named.setdefault(data, {}).update(titles)
    tables: dict[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], None] = {}
    for data, titles in named.items():
        if titles:
            records = spec["datasets"][data]
            lines = dict.fromkeys(tuple(_written(each.get(name)) for name in titles) for each in records)
            tables[tuple(titles.values()), tuple(lines)] = None
    blocks: list[Block] = []
    for number, (heads, written) in enumerate(tables, 1):
        name = f"Data{f' {number}' if len(tables) > 1 else ''}: {label}"
        shown = [Line([*map(Cell, line)]) for line in written[:MOST_LINES]]
        blocks.append(Table(f"Data: {label}", [*map(Head, heads)], shown, "data", name))
        if (more := len(written) - MOST_LINES) > 0:
            blocks += texts(
                f"{more} more lines are not shown; results.csv and epochs.csv have all numbers."
            )
    return blocks


def _marks(view: Spec, data: str) -> Iterator[tuple[str, Spec]]:
    """The name of the records and the encoding of each mark. Inner views inherit the records."""
    data = view.get("data", {}).get("name", data)
    if "mark" in view:
        yield data, view["encoding"]
    inner = [view["spec"]] if "spec" in view else []
    for name in ("layer", "concat", "hconcat"):
        inner += view.get(name, ())
    for each in inner:
        yield from _marks(each, data)


def _written(value: Any) -> str:
    if value is None:
        return formats.ABSENT
    return formats.significant(value) if isinstance(value, float) else str(value)
