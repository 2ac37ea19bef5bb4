"""Quantities over the number of nodes: one line per strategy, transport, partitioner and ranks per node.

If nodes have several ranks, the x axis counts ranks, which determine the ideal speedup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from orchestrator.report.figures.style import (
    FAINT,
    INK,
    WIDTH_IN,
    Legend,
    SeriesStyle,
    Style,
    set_title,
    short_name,
)
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Clock
from orchestrator.report.statistics.spread import Spread
from orchestrator.results.limits import counted

PLOT_IN = 2.9  # height without the legend
Point = tuple[Group, Spread]
LOG_FROM = 16  # node counts that differ by this factor go on a logarithmic axis


@dataclass(frozen=True)
class Quantity:
    """The quantity on the y axis. title and axis may contain `{clock}`."""

    name: str  # of the file
    title: str
    axis: str  # label, with its unit
    metric: Metric
    kind: Literal["time", "speedup", "share", "count"]
    cores_matter: bool = False  # whether sharing cores affects it

    def title_on(self, clock: Clock) -> str:
        return self.title.format(Clock=clock.capitalize())


QUANTITIES = (
    Quantity("time", "{Clock} time", "{clock} time, s", lambda row: row.train_s, "time", True),
    Quantity(
        "speedup",
        "Speedup",
        "serial {clock} time / {clock} time",
        lambda row: row.speedup,
        "speedup",
        True,
    ),
    Quantity(
        "cpu_time_speedup",
        "CPU-time speedup",
        "serial CPU time / CPU time",
        lambda row: row.cpu_time_speedup,
        "speedup",
    ),
    Quantity("accuracy", "Test accuracy", "test accuracy", lambda row: row.accuracy, "share"),
    Quantity(
        "staleness", "Staleness of gradients", "updates by others", lambda row: row.staleness, "count"
    ),
)


def lines_over_nodes(groups: Sequence[Group], style: Style, quantity: Quantity) -> Figure | None:
    """Mean and range over seeds, against ranks; None if no group has the quantity."""
    lines: dict[tuple[str, str, str, int], list[Point]] = {}
    for group in sorted(groups, key=lambda group: group.shape.ranks):
        spread = group.over(quantity.metric, geometric=quantity.kind in ("time", "speedup"))
        if spread:
            lines.setdefault(group.line, []).append((group, spread))
    if not lines:
        return None
    known = [point for line in lines.values() for point in line]
    counts = sorted({group.shape.ranks for group, _ in known})
    # The legend lists lines in the order of their right ends.
    ordered = sorted(lines.values(), key=lambda line: -line[-1][1].mean)
    legend = Legend()
    for line in ordered:
        legend.add(_name(line[0][0]), style.series(line[0][0]))
    legend.explain_partitioners([group for group, _ in known], style)
    figure = Figure(figsize=(WIDTH_IN, PLOT_IN + legend.height_in), layout="constrained")
    axes = figure.add_subplot()
    shift = _Shift(len(ordered), counts)
    for index, line in enumerate(ordered):
        _draw_line(axes, line, style.series(line[0][0]), shift, index)
    _scale(axes, quantity, counts, known)
    if quantity.kind == "speedup":
        _ideal(axes, counts)
    if quantity.cores_matter:
        _mark_cores(axes, known, counts)
    clock = groups[0].first.clock
    set_title(figure, quantity.title_on(clock))
    axes.set_xlabel("ranks" if any(group.shape.per_node for group, _ in known) else "nodes")
    axes.set_ylabel(quantity.axis.format(clock=clock))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    legend.draw(figure)
    return figure


def _name(group: Group) -> str:
    return " · ".join(filter(None, [short_name(group), group.shape.per_node]))


class _Shift:
    """Offsets lines sideways, so that equal values do not hide each other."""

    def __init__(self, lines: int, counts: Sequence[int]) -> None:
        self._lines = lines
        self._step = min(0.07, 0.4 / lines)
        self._additive = counts[-1] < LOG_FROM * counts[0]

    def __call__(self, ranks: int, index: int) -> float:
        by = (index - (self._lines - 1) / 2) * self._step
        if ranks == 1:
            return ranks
        return ranks + by if self._additive else ranks * 2 ** (by / 2)


def _draw_line(axes: Axes, line: Sequence[Point], series: SeriesStyle, shift: _Shift, index: int) -> None:
    at = [shift(group.shape.ranks, index) for group, _ in line]
    means = [spread.mean for _, spread in line]
    lows, highs = [spread.low for _, spread in line], [spread.high for _, spread in line]
    if line[0][0].serial:
        axes.axhline(means[0], color=series.colour, linewidth=0.9, alpha=0.6, zorder=1)
    if len(line) > 1:
        axes.fill_between(at, lows, highs, color=series.colour, alpha=0.12, linewidth=0)
    axes.vlines(at, lows, highs, color=series.colour, linewidth=1, alpha=0.55)
    axes.plot(
        at,
        means,
        color=series.colour,
        linestyle=series.dashes,
        linewidth=1.8,
        marker=series.marker,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.7,
        zorder=3,
    )


def _scale(axes: Axes, quantity: Quantity, counts: list[int], known: Sequence[Point]) -> None:
    """Set the axes: whole numbers on the x axis; a y axis from zero where that is readable."""
    wide = counts[-1] >= LOG_FROM * counts[0]
    if wide:
        axes.set_xscale("log", base=2)
        axes.set_xlim(counts[0] / 1.3, counts[-1] * 1.3)
    else:
        axes.set_xlim(counts[0] - 0.5, counts[-1] + 0.5)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(counts, wide)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    low, high = min(spread.low for _, spread in known), max(spread.high for _, spread in known)
    if quantity.kind == "share":
        room = max(0.02, 0.06 * (high - low))
        axes.set_ylim(max(0.0, low - room), min(1.0, high + room) if high + room < 1 else 1.005)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if high - low > 0.08 else 1))
    elif low > 0 and (wide or high / low > 30):
        axes.set_yscale("log", base=2 if high / low < 1000 else 10)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, high * 1.1 or 1)


def _ticks(counts: Sequence[int], wide: bool) -> list[int]:
    if len(counts) <= 12:
        return list(counts)
    if wide:
        return [2**power for power in range(counts[-1].bit_length()) if 2**power >= counts[0]]
    return list(range(counts[0], counts[-1] + 1, ceil((counts[-1] - counts[0]) / 10)))


def _ideal(axes: Axes, counts: list[int]) -> None:
    """Draw linear speedup. It is cut off where it would flatten the other lines."""
    top = max(axes.get_ylim()[1], 1.5)
    if axes.get_yscale() == "linear":
        top = min(max(2 * top, 2.0), max(counts[-1] * 1.06, top))
        axes.set_ylim(0, top)
    end = min(float(counts[-1]), top / 1.02)
    xs = [1 + (end - 1) * part / 50 for part in range(51)] if end > 1 else [1.0]
    axes.plot(xs, xs, color=FAINT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        "ideal",
        (end, end),
        (-8, 1),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=INK,
        fontsize=8,
    )


def _mark_cores(axes: Axes, known: Sequence[Point], counts: Sequence[int]) -> None:
    """Shade the numbers of ranks from which on all runs share cores."""
    unshared = max((group.shape.ranks for group, _ in known if not group.first.shares_cores), default=0)
    sharing = [group for group, _ in known if group.first.shares_cores and group.shape.ranks > unshared]
    if not sharing:
        return
    first = min(group.shape.ranks for group in sharing)
    left = unshared or first - 1
    start = (left * first) ** 0.5 if axes.get_xscale() == "log" else (left + first) / 2
    cores = max(group.first.result.cores for group in sharing)
    axes.axvspan(start, axes.get_xlim()[1], color="#F1F3F5", zorder=0, linewidth=0)
    axes.axvline(start, color=FAINT, linewidth=0.8, zorder=0)
    axes.annotate(
        f"nodes share {counted(cores, 'core')}",
        (start, 1),
        (4, -3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=INK,
    )
