"""The overview of all strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.report import formats
from orchestrator.report.figures.axes import Axis, amount_axis, share_axis
from orchestrator.report.figures.chart import PADDING, Chart, chart_of, data_of
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity

MIN_STRATEGIES = 3  # fewer are shown by other figures
ROW = 24  # pixels
PANEL_WIDTH = 240
VALUE_WIDTH = 58  # of the values beside a panel


def has_overview(view: WorkloadView) -> bool:
    """Whether there are enough strategies for `strategies_at_a_glance`."""
    return len(_with_accuracy(view)) >= MIN_STRATEGIES


def _with_accuracy(view: WorkloadView) -> list[Group]:
    return [group for group in view.reference_candidates if group.accuracy]


def strategies_at_a_glance(view: WorkloadView, style: Style) -> Chart | None:
    """One line per strategy, by accuracy: accuracy, time, bytes sent; None for few strategies.

    Dots and not bars, since a logarithmic axis has no zero from which a bar could start.
    """
    if not has_overview(view):
        return None
    shown = sorted(_with_accuracy(view), key=_accuracy, reverse=True)
    if view.serial:
        shown.insert(0, view.serial)
    spreads = [group.accuracy for group in shown if group.accuracy]
    accuracies = [spread.mean for spread in spreads]
    ranges = [(spread.low, spread.high) for spread in spreads]
    columns = [
        _Column(Q.accuracy, share_axis(accuracies, "mean", "test accuracy", ranges)),
        _amounts(shown, Q.train_s, f"{view.clock} time, s"),
        _amounts(shown, Q.bytes_sent_per_rank, "sent per rank", "~s"),
    ]
    panels = [_dots(column, shown, style, first=at == 0) for at, column in enumerate(columns) if column]
    partitioner = f", {view.partitioners[0]}" if len(view.partitioners) > 1 else ""
    drawn = alt.hconcat(*panels, spacing=24).properties(
        title=f"Strategies at {view.shape.label}{partitioner}", padding=PADDING
    )
    return Chart.of(drawn, wide=True)


@dataclass(frozen=True)
class _Column:
    """A quantity of the overview."""

    quantity: Quantity
    axis: Axis


def _amounts(groups: Sequence[Group], quantity: Quantity, title: str, labels: str = "") -> _Column | None:
    """A column of times or bytes; None if no group has any. Zero has no place on a logarithmic axis.

    labels: the format of the axis.
    """
    spreads = [spread for group in groups if (spread := quantity.over(group))]
    values = [value for spread in spreads for value in (spread.low, spread.high) if value > 0]
    if not values:
        return None
    axis = amount_axis(values, "mean", title)
    axis = replace(axis, title=f"{axis.title}, log scale") if axis.log else axis
    return _Column(quantity, replace(axis, format=labels or axis.format))


def _dots(
    column: _Column, groups: Sequence[Group], style: Style, first: bool
) -> alt.LayerChart | alt.FacetChart:
    """A dot per group at the mean, over a pale bar from the lowest to the highest seed, with its value."""
    records = [record for group in groups if (record := _record(column, group))]
    names = list(dict.fromkeys(group.series for group in groups))
    labels = alt.Axis(title=None, ticks=False, labelPadding=8) if first else None
    rows = alt.Y("series:N", sort=names, axis=labels)
    look = alt.Color("series:N", scale=style.colours(groups), legend=None)
    shape = alt.Shape("series:N", scale=style.shapes(groups), legend=None)
    x = alt.X("mean:Q", scale=column.axis.scale, axis=column.axis.drawn)
    tips = [
        alt.Tooltip(f"{field}:N", title=title)
        for field, title in (
            ("series", "strategy"),
            ("nodes", "nodes"),
            ("written", column.axis.title.partition(",")[0]),
            ("range", "over seeds"),
            ("accuracy", "test accuracy"),
        )
    ]
    base = alt.Chart().encode(y=rows)
    inside = base.transform_filter("datum.outside == 0").encode(x=x, color=look)
    spread = base.transform_filter("datum.outside == 0").encode(
        x=alt.X("low:Q", scale=column.axis.scale), x2="high:Q", color=look
    )
    layers = [
        spread.mark_rule(strokeWidth=4, opacity=0.35, clip=True, aria=False),
        inside.encode(shape=shape, tooltip=tips).mark_point(
            filled=True, size=80, opacity=1, stroke=colour("paper"), strokeWidth=1
        ),
        _values(base),
    ]
    layers += _beyond(base, records, look, tips)
    if first and any(group.serial for group in groups):
        layers.insert(0, _serial_rule(groups, x))
    drawn = alt.layer(*layers, data=data_of(records))
    return drawn.properties(width=PANEL_WIDTH, height=alt.Step(ROW))


def _values(base: alt.Chart) -> alt.Chart:
    """The values at the right of a panel, where they cannot hide a dot."""
    written: alt.Chart = base.mark_text(align="right", dx=VALUE_WIDTH, fontSize=11, aria=False)
    return written.encode(x=alt.value("width"), text="written:N")


def _beyond(
    base: alt.Chart, records: Sequence[Mapping[str, Any]], look: alt.Color, tips: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """Arrows at the edges for means outside the axis."""
    sides = ((-1, "triangle-left", 0), (1, "triangle-right", "width"))
    return [
        base.transform_filter(f"datum.outside == {side}")
        .mark_point(shape=shape, filled=True, size=90, opacity=1, xOffset=-7 * side)
        .encode(x=alt.value(edge), color=look, tooltip=list(tips))
        for side, shape, edge in sides
        if any(record["outside"] == side for record in records)
    ]


def _serial_rule(groups: Sequence[Group], x: alt.X) -> alt.Chart:
    serial = [{"series": group.series, "mean": _accuracy(group)} for group in groups if group.serial]
    rule: alt.Chart = chart_of(serial).mark_rule(color=colour("serial"), opacity=0.6, aria=False)
    return rule.encode(x=x)


def _record(column: _Column, group: Group) -> dict[str, Any]:
    """A group's value of a column; without one, only the sign for an absent value is written."""
    spread, write = column.quantity.over(group), column.quantity.write
    record: dict[str, Any] = {
        "series": group.series,
        "nodes": group.shape.short,
        "accuracy": formats.percent(_accuracy(group)),
        "written": write(spread.mean) if spread else formats.ABSENT,
        "outside": None,
    }
    if spread is None:
        return record
    return record | {
        "mean": spread.mean,
        "low": spread.low,
        "high": spread.high,
        "range": spread.range_of_seeds(write),
        "outside": column.axis.outside(spread.mean),
    }


def _accuracy(group: Group) -> float:
    return group.accuracy.mean if group.accuracy else float("nan")
