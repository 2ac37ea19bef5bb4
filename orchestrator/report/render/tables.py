"""Columns: what each shows of an item, and the tables made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.report.formats import ABSENT
from orchestrator.report.model.rows import Clock, Row
from orchestrator.report.render.tree import Cell, Head, Line, Table

T = TypeVar("T")
Write = Callable[[float], str]

AT_FIRST = 6  # columns of a table
# Those that the page shows first, the most important first. A button shows the others.
FIRST = """
    workload strategy nodes block runs faults time_s_published time_s_measured accuracy_published
    accuracy_measured time_to_target_s cluster_s speedup accuracy bytes_sent_per_rank wall_s
    coverage overlap samples verified step_s state_bytes_per_rank_max activation_bytes_per_rank_max
    bubble_share extra_time accuracy_difference missing container_sent_bytes_mean
    container_cpu_s_mean container_throttled_s_max container_memory_peak_mib_max peak_memory_mib
"""


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


def words(key: str, title: str, text: Callable[[T], str]) -> Column[T]:
    """A column of texts."""
    return Column(key, title, lambda item: Cell(text(item)), number=False)


def numbers(
    key: str,
    title: str,
    read: Callable[[T], float | None],
    write: Write,
    detail: Callable[[T], str] = lambda _: "",
) -> Column[T]:
    """A column of numbers. detail: the small print below each."""

    def cell(item: T) -> Cell:
        value = read(item)
        return Cell(ABSENT) if value is None else Cell(write(value), detail(item), value)

    return Column(key, title, cell)


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
    cells = {column: [column.cell(item) for item in items] for column in columns if column.shown_for(items)}
    shown = [column for column, found in cells.items() if any(cell.text != ABSENT for cell in found)]
    first = _first([column.key for column in shown], most, clock)
    heads = [Head(column.title, column.number, column.key in first, column.key) for column in shown]
    lines = [
        Line([cells[column][at] for column in shown], filters_of(rows_of(item)), kind_of(item))
        for at, item in enumerate(items)
    ]
    return Table(caption, heads, lines)


def _first(keys: Sequence[str], most: int, clock: Clock) -> set[str]:
    """The keys of at most `most` columns to show first."""
    times = {"cluster_s": "wall_s", "wall_s": "cluster_s"} if clock == "wall" else {}
    important = [shown for key in FIRST.split() if (shown := times.get(key, key)) in keys]
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
