"""Columns: what each shows of an item, and the tables made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.report.formats import ABSENT
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Clock, Row
from orchestrator.report.render.order import ORDER
from orchestrator.report.render.tree import Cell, Head, Line, Table
from orchestrator.report.statistics.spread import Spread

S = TypeVar("S")
T = TypeVar("T")

AT_FIRST = 6  # columns of a table


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    key: stable identifier within its table. number: whether it is right-aligned. shown_for: whether to show
    it for these items; a column without any value is never shown.
    """

    key: str
    title: str
    cell: Callable[[T], Cell]
    number: bool = True
    shown_for: Callable[[Sequence[T]], bool] = bool

    def of(self, part: Callable[[S], T]) -> Column[S]:
        """The same column of items that have such a part."""
        return Column(self.key, self.title, lambda item: self.cell(part(item)), self.number)


def mean_and_range(spread: Spread | None, write: Callable[[float], str]) -> Cell:
    """The mean, with the range over seeds as detail."""
    return Cell(ABSENT) if spread is None else Cell.of(spread.mean, write, range_beside(spread, write))


def range_beside(spread: Spread, write: Callable[[float], str]) -> str:
    """The range over seeds; empty if it is written like the mean."""
    return "" if (written := spread.range(write)) == write(spread.mean) else written


def table_of(
    caption: str,
    columns: Sequence[Column[T]],
    items: Sequence[T],
    rows_of: Callable[[T], Sequence[Row]] = lambda _: (),
    kind_of: Callable[[T], str] = lambda _: "",
    clock: Clock = "cluster",
    most: int = AT_FIRST,
) -> Table:
    """The table of these items, with the columns that have a value.

    Args:
        rows_of: the runs of an item, by which filters find it.
        kind_of: the CSS class of an item's line.
        clock: the clock of the speedups.
        most: how many columns the page shows at first.
    """
    cells = [[column.cell(item) for item in items] for column in columns]
    shown = [
        (column, found)
        for column, found in zip(columns, cells, strict=True)
        if any(cell.text != ABSENT for cell in found) and column.shown_for(items)
    ]
    first = _first([column.key for column, _ in shown], most, clock)
    by_line = zip(*(found for _, found in shown), strict=True) if shown else [()] * len(items)
    return Table(
        caption,
        [Head(column.title, column.number, column.key in first, column.key) for column, _ in shown],
        [
            Line(line, filters_of(rows_of(item)), kind_of(item))
            for item, line in zip(items, by_line, strict=True)
        ],
    )


def table_of_groups(caption: str, columns: Sequence[Column[Group]], groups: Sequence[Group]) -> Table:
    """The table of these configurations."""
    clock = groups[0].first.clock if groups else "cluster"
    return table_of(
        caption,
        columns,
        groups,
        lambda group: group.rows,
        lambda group: "" if group.ok else "failed",
        clock,
    )


def _first(keys: Sequence[str], most: int, clock: Clock) -> set[str]:
    """The keys of at most `most` columns to show first."""
    times = {"cluster_s": "wall_s", "wall_s": "cluster_s"} if clock == "wall" else {}
    important = [shown for key in ORDER["first"] if (shown := times.get(key, key)) in keys]
    return {*[*important, *(key for key in keys if key not in important)][:most]}


def filters_of(rows: Sequence[Row]) -> dict[str, str]:
    """The values by which filters find runs of one configuration. status: those of all runs."""
    if not rows:
        return {}
    first = rows[0]
    values = {
        "series": first.series,
        "nodes": first.shape.short,
        "transport": first.transport,
        "partitioner": first.partitioner_label,
        "status": " ".join(dict.fromkeys(row.status for row in rows)),
    }
    return {name: value for name, value in values.items() if value}
