"""Tables of the page: their first columns, and the values by which filters find their lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Clock, Row
from orchestrator.report.render.columns import Cell, Column, filled, first_columns

T = TypeVar("T")

AT_FIRST = 6  # columns of a table


@dataclass(frozen=True)
class Head:
    """The head of a column. first: whether the page shows the column at first."""

    title: str
    number: bool
    first: bool

    @property
    def classes(self) -> Markup:
        """The attribute of its cells. Most are numbers, which need none."""
        names = " ".join(filter(None, ["" if self.number else "text", "" if self.first else "more"]))
        return Markup(f' class="{names}"') if names else Markup("")


@dataclass(frozen=True)
class Line:
    """A line of a table. filters: the line's values, by name of a filter."""

    cells: list[Cell]
    filters: Mapping[str, str] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True)
class Table:
    """A table. caption: what it is, for its caption and for screen readers."""

    caption: str
    heads: list[Head]
    lines: list[Line]

    @property
    def folds(self) -> bool:
        """Whether some columns are not shown at first."""
        return not all(head.first for head in self.heads)


def table_of(
    caption: str,
    columns: Sequence[Column[T]],
    items: Sequence[T],
    group_of: Callable[[T], Group | None] = lambda _: None,
    failed: Callable[[T], bool] = lambda _: False,
    clock: Clock = "cluster",
) -> Table:
    """The table of these items, with the columns that have a value.

    Args:
        group_of: the configuration of an item, by which filters find it.
        clock: the clock of the speedups.
    """
    shown = filled(columns, items)
    first = first_columns(shown, AT_FIRST, clock)
    return Table(
        caption,
        [Head(column.title, column.number, column.key in first) for column in shown],
        [
            Line(
                [column.cell(item) for column in shown],
                filters_of(group.rows) if (group := group_of(item)) else {},
                failed(item),
            )
            for item in items
        ],
    )


def table_of_groups(caption: str, columns: Sequence[Column[Group]], groups: Sequence[Group]) -> Table:
    """The table of these configurations."""
    clock = groups[0].first.clock if groups else "cluster"
    return table_of(caption, columns, groups, lambda group: group, lambda group: not group.ok, clock)


def filters_of(rows: Sequence[Row]) -> dict[str, str]:
    """The values by which filters find runs of one configuration. status: those of all runs."""
    first = rows[0]
    values = {
        "series": first.series,
        "nodes": first.shape.short,
        "transport": first.transport,
        "partitioner": first.partitioner_label,
        "status": " ".join(dict.fromkeys(row.status for row in rows)),
    }
    return {name: value for name, value in values.items() if value}
