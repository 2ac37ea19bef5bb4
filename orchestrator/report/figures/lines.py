"""Quantities over the number of nodes: one line per strategy, transport, partitioner and ranks per node.

If nodes have several ranks, the x axis counts ranks, which determine the ideal speedup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.report import formats
from orchestrator.report.figures.axes import Axis, amount_axis, count_axis, share_axis
from orchestrator.report.figures.chart import Chart, chart_of
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.named_lines import Lines, Record
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Clock
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.spread import Spread
from orchestrator.results.limits import counted

Point = tuple[Group, Spread]
Explained = tuple["alt.Chart", "alt.Chart"]  # a mark and its text
VISIBLE_IDEAL = 1.2  # an axis that ends below has no room for ideal speedup


@dataclass(frozen=True)
class Scaling:
    """A quantity on the y axis, against nodes. title and axis may contain `{clock}`."""

    name: str  # of the file
    quantity: Quantity
    title: str
    axis: str  # label, with its unit
    cores_matter: bool = False  # whether sharing cores affects it
    only_on: Clock | None = None  # the clock on which it is shown
    in_overview: bool = True  # whether the overview has its points, if there is one number of nodes

    def title_on(self, clock: Clock) -> str:
        return self.title.format(Clock=clock.capitalize(), clock=clock)

    @property
    def has_ideal(self) -> bool:
        """Whether it is at best the number of ranks."""
        return self.quantity in (Q.speedup, Q.cpu_time_speedup)


def lines_over_nodes(
    groups: Sequence[Group], style: Style, scaling: Scaling, notes: Sequence[str] = ()
) -> Chart | None:
    """Mean and range over seeds, against ranks; None if no group has the quantity.

    Args:
        notes: lines under the title.
    """
    points = points_of(groups, style, scaling.quantity)
    if not points:
        return None
    shown = [group for group, _ in points]
    counts = sorted({group.shape.ranks for group in shown})
    ranks = any(group.shape.per_node for group in shown)
    x = count_axis(counts, "nodes", "ranks" if ranks else "nodes")
    clock = groups[0].first.clock
    y = _y_axis(scaling, points, clock, counts)
    cores = _cores(shown, x) if scaling.cores_matter else None
    ideal = _ideal(x, y) if scaling.has_ideal else None
    explained = [pair for pair in (cores, ideal) if pair]
    lines = Lines(
        title=scaling.title_on(clock),
        records=[record(group, spread, scaling.quantity.write, shown) for group, spread in points],
        groups=shown,
        style=style,
        x=x,
        y=y,
        tooltip=tooltip(
            scaling.title_on(clock), ("nodes", x.title), scaling.quantity.write is formats.seconds
        ),
        behind=[*(mark for mark, _ in explained), *_serial(points, y)],
        remarks=[text for _, text in explained],
        log_axis="y",
        subtitle=notes,
    )
    return lines.chart()


def points_of(groups: Sequence[Group], style: Style, quantity: Quantity) -> list[Point]:
    """The groups that have the quantity, by series in the order of all figures, then by ranks."""
    order = style.order(groups)
    points = [(group, spread) for group in groups if (spread := quantity.over(group))]
    return sorted(
        points,
        key=lambda point: (order.index(point[0].series), point[0].partitioner_label, point[0].shape.ranks),
    )


def record(group: Group, spread: Spread, write: Callable[[float], str], shown: Sequence[Group]) -> Record:
    """A point. shown: all groups of the figure; names leave out the first partitioner, which most share."""
    series = group.series
    usual = next((other.partitioner_label for other in shown if other.partitioner_label), "")
    name = series if group.partitioner_label in ("", usual) else f"{series}, {group.partitioner_label}"
    return {
        "series": series,
        "line": f"{series}, {group.partitioner_label}",
        "name": name,
        "partitioner": group.partitioner_label,
        "serial": group.serial,
        "nodes": group.shape.ranks,
        "mean": spread.mean,
        "low": spread.low,
        "high": spread.high,
        "written": write(spread.mean),
        "range": spread.range_of_seeds(write),
        "accuracy": formats.percent(group.accuracy.mean if group.accuracy else None),
    }


def tooltip(quantity: str, x: tuple[str, str], with_accuracy: bool = False) -> list[alt.Tooltip]:
    """What a point shows under the pointer: accuracy beside a time, since a fast run may learn nothing.

    Args:
        x: the field of the x axis and its title.
    """
    fields = [("name", "strategy"), ("nodes", "nodes"), x, ("written", quantity), ("range", "over seeds")]
    if with_accuracy:
        fields.append(("accuracy", "test accuracy"))
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in dict(fields).items()]


def _y_axis(scaling: Scaling, points: Sequence[Point], clock: Clock, counts: Sequence[int]) -> Axis:
    title = scaling.axis.format(clock=clock)
    if scaling.quantity.write is formats.percent:
        ranges = [(spread.low, spread.high) for _, spread in points]
        return share_axis([spread.mean for _, spread in points], "mean", title, ranges)
    values = [value for _, spread in points for value in (spread.low, spread.high)]
    # Both axes are logarithmic over many nodes, so that ideal scaling remains a straight line.
    many = counts[-1] >= 16 * counts[0] and scaling.quantity.ratio
    return amount_axis(values, "mean", title, log=many)


def _serial(points: Sequence[Point], y: Axis) -> list[alt.Chart]:
    """A line at the serial run's value, to compare all others with."""
    at = [
        {"series": group.series, "mean": spread.mean, "last": False}
        for group, spread in points
        if group.serial
    ]
    if not at:
        return []
    rule = chart_of(at[:1]).mark_rule(color=colour("serial"), opacity=0.7, clip=True, aria=False)
    return [rule.encode(y=y.y)]


def _ideal(x: Axis, y: Axis) -> Explained | None:
    """Linear speedup. It is cut off where it would flatten the other lines."""
    end = min(x.high, y.high)
    if end < VISIBLE_IDEAL:
        return None
    ends = [{"series": "ideal", x.field: at, y.field: at} for at in (max(x.low, y.low, 1), end)]
    base = chart_of(ends).encode(x=x.x, y=y.y)
    line = base.mark_line(color=colour("axis"), strokeDash=[3, 3], strokeWidth=1.2, clip=True, aria=False)
    last = f"datum.{x.field} == {end}"
    text = base.transform_filter(last).mark_text(
        text="ideal", color=colour("soft"), align="right", dx=-8, dy=4
    )
    return line, text


def _cores(shown: Sequence[Group], x: Axis) -> Explained | None:
    """The numbers of ranks from which on all runs share cores, shaded."""
    unshared = max((group.shape.ranks for group in shown if not group.first.shares_cores), default=0)
    sharing = [group for group in shown if group.first.shares_cores and group.shape.ranks > unshared]
    if not sharing:
        return None
    first = min(group.shape.ranks for group in sharing)
    left = unshared or first - 1
    start = (left * first) ** 0.5 if x.log else (left + first) / 2
    cores = counted(max(group.first.result.cores for group in sharing), "core")
    base = chart_of([{"series": "", x.field: max(start, x.low)}]).encode(x=x.x)
    shade = base.mark_rect(color=colour("shade"), aria=False).encode(x2=alt.value("width"))
    text = base.mark_text(text=f"nodes share {cores}", color=colour("soft"), align="left", dx=5)
    return shade, text.encode(y=alt.value(9))
