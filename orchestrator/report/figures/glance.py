"""Overviews: all strategies, and all strategies with all partitioners, in one figure each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report import formats
from orchestrator.report.figures.style import (
    FAINT,
    FULL_WIDTH_IN,
    SERIAL_COLOUR,
    WIDTH_IN,
    Style,
    set_title,
    short_name,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.statistics.spread import Spread

MIN_STRATEGIES = 3  # fewer are shown by other figures
ROW_IN = 0.25
FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
WORST = 0.3  # loss of accuracy at full colour
MAX_NARROW_COLUMNS = 7  # more strategies need the whole page width
LONG_NAME = 24  # characters; longer names need the whole page width
NARROW = 11  # characters of a heading; longer ones are rotated


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


def partitioners_by_strategy(view: WorkloadView) -> Figure | None:
    """Accuracy of each strategy with each partitioner; None unless several partitioners were run."""
    reference, *others = view.partitioners or [""]
    columns = list(dict.fromkeys(short_name(group) for group in view.candidates if group.partitioner_label))
    cells: dict[tuple[str, str], Spread] = {
        (group.partitioner_label, short_name(group)): spread
        for group in view.candidates
        if (spread := group.accuracy)
    }
    if not others or len(columns) < 2:
        return None
    rows = [reference, *others]
    means = np.array([[_cell(cells, row, column) for column in columns] for row in rows])
    loss = np.clip((means[0] - means) / WORST, 0, 1)
    width = WIDTH_IN if len(columns) <= MAX_NARROW_COLUMNS else FULL_WIDTH_IN
    figure = Figure(figsize=(width, 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.pcolormesh(
        np.nan_to_num(loss), cmap="Oranges", vmin=0, vmax=1.6, edgecolors="white", linewidth=1.2
    )
    for (at, column), mean in np.ndenumerate(means):
        text = formats.ABSENT if np.isnan(mean) else formats.percent(mean)
        axes.text(column + 0.5, at + 0.5, text, ha="center", va="center", fontsize=8.5)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    rotated = any(len(column) > NARROW for column in columns) and len(columns) > 3
    axes.set_xticks(
        np.arange(len(columns)) + 0.5, columns, rotation=25 * rotated, ha="left" if rotated else "center"
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    axes.axhline(1, color=FAINT, linewidth=1.0)
    set_title(figure, f"Test accuracy by partitioner, {view.shape.label}")
    return figure


def _cell(cells: dict[tuple[str, str], Spread], row: str, column: str) -> float:
    spread = cells.get((row, column))
    return spread.mean if spread else float("nan")


def _accuracy(group: Group) -> float:
    return group.accuracy.mean if group.accuracy else float("nan")
