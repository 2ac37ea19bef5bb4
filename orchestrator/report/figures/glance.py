"""The overview of all strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report import formats
from orchestrator.report.figures.style import (
    FULL_WIDTH_IN,
    SERIAL_COLOUR,
    WIDTH_IN,
    Style,
    set_title,
    short_name,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric

MIN_STRATEGIES = 3  # fewer are shown by other figures
ROW_IN = 0.25
FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
LONG_NAME = 24  # characters; longer names need the whole page width


def strategies_at_a_glance(view: WorkloadView, style: Style) -> Figure | None:
    """One line per strategy, by accuracy: accuracy, wall time, bytes sent; None for few strategies."""
    shown = [group for group in view.reference_candidates if group.accuracy]
    if len(shown) < MIN_STRATEGIES:
        return None
    shown.sort(key=_accuracy, reverse=True)
    if view.serial:
        shown.insert(0, view.serial)
    names = [short_name(group) for group in shown]
    width = WIDTH_IN if max(map(len, names)) <= LONG_NAME else FULL_WIDTH_IN
    figure = Figure(figsize=(width, 1.0 + ROW_IN * len(shown)), layout="constrained")
    accuracy, time, sent = figure.subplots(1, 3, sharey=True, width_ratios=(1.2, 1, 1))
    colours = [style.series(group).colour for group in shown]
    for at, (group, colour) in enumerate(zip(shown, colours, strict=True)):
        spread = group.accuracy
        if spread:
            accuracy.plot([spread.low, spread.high], [at, at], color=colour, linewidth=3, alpha=0.35)
            accuracy.plot(spread.mean, at, marker="o", markersize=6, color=colour, markeredgecolor="white")
    if view.serial:
        accuracy.axvline(_accuracy(view.serial), color=SERIAL_COLOUR, linewidth=0.9, zorder=0)
    accuracy.xaxis.set_major_locator(MaxNLocator(2))
    accuracy.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
    _bars(time, shown, colours, lambda row: row.train_s, formats.seconds, geometric=True)
    _bars(sent, shown, colours, lambda row: row.bytes_sent_per_rank, formats.size)
    for axes, title in ((accuracy, "test accuracy"), (time, f"{view.clock} time"), (sent, "sent per rank")):
        axes.set_title(f"{title}, log scale" if axes.get_xscale() == "log" else title)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    accuracy.set_yticks(range(len(shown)), names)
    accuracy.invert_yaxis()
    partitioner = f", {view.partitioners[0]}" if len(view.partitioners) > 1 else ""
    set_title(figure, f"Strategies at {view.shape.label}{partitioner}")
    return figure


def _bars(
    axes: Axes,
    groups: Sequence[Group],
    colours: Sequence[str],
    metric: Metric,
    write: Callable[[float], str],
    geometric: bool = False,
) -> None:
    """One bar per group, annotated with its mean; none for a group without the metric."""
    spreads = [group.over(metric, geometric) for group in groups]
    known = [spread.mean for spread in spreads if spread and spread.mean > 0]
    far_apart = bool(known) and max(known) > FAR_APART * min(known)
    if far_apart:
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xlim(min(known) / 3, max(known) * 12)
    elif known:
        axes.set_xlim(0, max(known) * 1.6)
    for at, (spread, colour) in enumerate(zip(spreads, colours, strict=True)):
        if spread is None:
            continue
        axes.barh(at, spread.mean, height=0.6, color=colour, alpha=0.75)
        start = (max(spread.mean, axes.get_xlim()[0]), at)
        axes.annotate(
            write(spread.mean), start, (3, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: ""))
    axes.tick_params(axis="x", length=0)


def _accuracy(group: Group) -> float:
    return group.accuracy.mean if group.accuracy else float("nan")
