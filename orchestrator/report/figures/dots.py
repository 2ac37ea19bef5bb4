"""Dots with intervals: a configuration per row, a quantity per panel.

Dots and not bars, since a logarithmic axis has no zero from which a bar could start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.report import formats
from orchestrator.report.figures.axes import Axis, axis_of
from orchestrator.report.figures.bars import extent_of, fold, name_axis, step_of
from orchestrator.report.figures.chart import HALF_PAGE, PADDING, PAGE, Chart
from orchestrator.report.figures.kind import ACCURACY, INTERVAL, Point, Subject
from orchestrator.report.figures.lines import dots_at
from orchestrator.report.figures.spec import Spec, data, layer
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity

MIN_STRATEGIES = 3  # fewer are shown by other figures
VALUE_WIDTH = 62  # pixels of the values beside a panel, and of the space to the next


@dataclass(frozen=True)
class Column:
    """A quantity of each row. title: of the axis. beside: one that is marked by a vertical line."""

    quantity: Quantity
    title: str
    beside: Quantity | None = None


def dots(
    subject: Subject,
    rows: Sequence[tuple[str, Group]],
    columns: Sequence[Column],
    title: str,
    subtitle: str = "",
) -> Chart:
    """A panel per column that has values. rows: groups with their names, from top to bottom."""
    names = [fold(f"{name}, dropped" if group.dropped else name) for name, group in rows]
    shown = [each for each in columns if any(each.quantity.over(group) for _, group in rows)]
    room = (PAGE if len(columns) > 1 else HALF_PAGE) - extent_of(names)
    width = round(room / len(shown)) - VALUE_WIDTH - 24
    panels: list[Spec] = []
    for column in shown:
        groups = [group for _, group in rows]
        records = [_record(subject, column, *row) for row in zip(names, groups, strict=True)]
        axis = _axis(column, [record for record in records if record["mean"] is not None])
        outside = [None if each["mean"] is None else axis.outside(each["mean"]) for each in records]
        records = [{**each, "outside": side} for each, side in zip(records, outside, strict=True)]
        y = name_axis(names, labelled=not panels)
        panels.append(
            {
                **data(records),
                "layer": _marks(subject, column, records, axis, y),
                "width": width,
                "height": {"step": step_of(names)},
            }
        )
    panel, *others = panels
    view = {"hconcat": panels, "spacing": 24} if others else panel
    return Chart.of({**view, "padding": PADDING}, title, subtitle, wide=len(columns) > 1)


def _record(subject: Subject, column: Column, name: str, group: Group) -> Point:
    """A group's value of a column; without one, only the sign for an absent value is written."""
    point = subject.point(group, column.quantity)
    absent = {"series": group.series, "written": formats.ABSENT, "mean": None, "serial": False}
    record = {"name": name, **(point or absent)}
    if column.beside and (beside := column.beside.over(group)):
        record |= {"beside": beside.mean, "besides": column.beside.write(beside.mean)}
    return record


def _axis(column: Column, records: Sequence[Point]) -> Axis:
    """Zero has no place on a logarithmic axis."""
    known = [record for record in records if record["mean"] > 0] or records
    beside = [record["beside"] for record in known if "beside" in record]
    marked = [dict.fromkeys(("mean", "low", "high"), each) for each in beside]
    axis = axis_of(column.quantity, [*known, *marked], column.title)
    return replace(axis, title=f"{axis.title}, log scale") if axis.log else axis


def _marks(subject: Subject, column: Column, records: Sequence[Point], axis: Axis, y: Spec) -> list[Spec]:
    """Intervals, dots, and the values at the right, where they cannot hide a dot."""
    names, x = [record["series"] for record in records], axis.channel
    color = subject.style.looks(names)["color"]
    tips = {"name": "strategy", "nodes": "nodes", "written": axis.title.partition(",")[0]}
    tips |= {**INTERVAL, **ACCURACY, **({"besides": column.beside.title} if column.beside else {})}
    inside, value = "datum.outside === 0", {"align": "right", "dx": VALUE_WIDTH, "fontSize": 11}
    bar = {"strokeWidth": 4, "opacity": 0.35, "clip": True}
    found = [
        layer("rule", bar, where=inside, y=y, x={**x, "field": "low"}, x2={"field": "high"}, color=color),
        dots_at(subject.style, names, tips, x=x, y=y),
        layer("text", value, y=y, x={"value": "width"}, text="written:N"),
    ]
    if any(record["serial"] for record in records):
        line = {"color": colour("serial"), "opacity": 0.6}
        found.insert(0, layer("rule", line, where=f"datum.serial && {inside}", x=x))
    if column.beside:
        tick = {"thickness": 2, "height": 20, "color": colour("ink")}
        found.insert(1, layer("tick", tick, x={**x, "field": "beside"}, y=y))
    for side, mark, edge in ((-1, "triangle-left", 0), (1, "triangle-right", "width")):
        if any(record["outside"] == side for record in records):
            arrow = {"shape": mark, "filled": True, "size": 90, "opacity": 1, "xOffset": -7 * side}
            where = f"datum.outside === {side}"
            found.append(layer("point", arrow, where=where, tips=tips, y=y, x={"value": edge}, color=color))
    return found


def has_overview(view: WorkloadView) -> bool:
    """Whether there are enough strategies for `strategies_at_a_glance`."""
    return sum(bool(Q.accuracy.over(group)) for group in view.reference_candidates) >= MIN_STRATEGIES


def strategies_at_a_glance(subject: Subject) -> Chart | None:
    """One line per strategy, by accuracy: accuracy, time, bytes sent; None for few strategies."""
    view = subject.view
    if not has_overview(view):
        return None
    ranked = [group for group in view.reference_candidates if Q.accuracy.over(group)]
    ranked.sort(key=Q.accuracy.mean_of, reverse=True)
    shown = [*([view.serial] if view.serial else []), *ranked]
    partitioner = f", {view.partitioners[0]}" if len(view.partitioners) > 1 else ""
    columns = [
        Column(Q.accuracy, "test accuracy"),
        Column(Q.train_s, f"{view.clock} time, s"),
        Column(Q.bytes_sent_per_rank, "sent per rank"),
    ]
    rows = [(group.series, group) for group in shown]
    return dots(subject, rows, columns, f"Strategies at {view.shape.label}{partitioner}")
