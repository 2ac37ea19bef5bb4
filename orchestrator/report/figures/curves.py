"""Curves over training: accuracy against wall time, and loss of textbook and library optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from orchestrator.report.figures.style import (
    FAINT,
    INK,
    STRATEGY_COLOURS,
    WIDTH_IN,
    Legend,
    SeriesStyle,
    Style,
    set_title,
    short_name,
)
from orchestrator.report.formats import percent
from orchestrator.report.metrics.textbook_optimizers import OptimizerPair, losses
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape
from orchestrator.report.model.rows import Row
from orchestrator.report.statistics.spread import Spread

PANEL_IN = 2.6
LOSS_HEIGHT_IN = 2.6
TARGET_DASHES = (0, (2, 2))
LOCAL_DASHES = (0, (3.5, 1.5))


@dataclass(frozen=True)
class CurvePoint:
    """A group after an epoch. train_s: mean over seeds. accuracy: 0 … 1."""

    train_s: float
    accuracy: Spread


def curve(group: Group) -> list[CurvePoint]:
    """One point for each epoch that every seed evaluated: the mean over nodes' models, then over seeds."""
    runs = [_epochs(row) for row in group.ok_rows if row.timed]
    shared = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    points = []
    for epoch in shared:
        accuracy = Spread.of(run[epoch][1] for run in runs)
        if accuracy:
            points.append(CurvePoint(fmean(run[epoch][0] for run in runs), accuracy))
    return points


def _epochs(row: Row) -> dict[int, tuple[float, float]]:
    """epoch -> (time of the slowest rank so far, mean accuracy of the ranks' models)."""
    epochs: dict[int, list[tuple[float, float]]] = {}
    for point in row.result.epochs:
        epochs.setdefault(point.epoch, []).append((point.train_s, point.accuracy))
    return {
        epoch: (max(train_s for train_s, _ in points), fmean(accuracy for _, accuracy in points))
        for epoch, points in epochs.items()
    }


def has_local_models(group: Group) -> bool:
    """Whether nodes keep local models until the end."""
    return any(row.local_accuracies for row in group.ok_rows)


def accuracy_over_time(groups: Sequence[Group], style: Style, shape: ClusterShape) -> Figure | None:
    """Serial and all groups of `shape`, one panel per partitioner; None if no epoch was evaluated."""
    shown = [group for group in groups if (group.serial or group.shape == shape) and curve(group)]
    if not shown:
        return None
    partitioners = list(
        dict.fromkeys(group.partitioner_label for group in shown if group.partitioner_label)
    )
    panels = partitioners or [""]
    legend = Legend()
    for group in shown:
        legend.add(short_name(group), style.series(group))
    if any(has_local_models(group) for group in shown):
        legend.explain("mean of local models", linestyle=LOCAL_DASHES)
        legend.explain("averaged model, at the end", linestyle="none", marker="*", markersize=10)
    target = shown[0].first.run.target_accuracy
    if target is not None:
        legend.explain(f"target, {percent(target)}", color=FAINT, linewidth=0.9, linestyle=TARGET_DASHES)
    height = PANEL_IN * len(panels) + legend.height_in + 0.3
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, partitioner in zip(all_axes, panels, strict=True):
        for group in shown:
            if group.partitioner_label in ("", partitioner):
                _draw(axes, group, style.series(group))
        if target is not None:
            axes.axhline(target, color=FAINT, linewidth=0.9, linestyle=TARGET_DASHES, zorder=1)
        axes.set_ylabel("test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        if len(panels) > 1:
            axes.set_title(partitioner)
    all_axes[0].set_xlim(left=0)
    all_axes[0].set_ylim(top=1.01)
    all_axes[-1].set_xlabel(f"{shown[0].first.clock} time, s")
    set_title(figure, f"Accuracy against {shown[0].first.clock} time, {shape.label}")
    legend.draw(figure)
    return figure


def _draw(axes: Axes, group: Group, series: SeriesStyle) -> None:
    points, local = curve(group), has_local_models(group)
    at, means = [point.train_s for point in points], [point.accuracy.mean for point in points]
    lows, highs = [point.accuracy.low for point in points], [point.accuracy.high for point in points]
    axes.fill_between(at, lows, highs, color=series.colour, alpha=0.09, linewidth=0)
    style = LOCAL_DASHES if local else "solid"
    axes.plot(at, means, color=series.colour, linestyle=style, linewidth=1.4 if local else 1.8)
    marker: dict[str, Any] = {
        "color": series.colour,
        "markeredgecolor": "white",
        "linestyle": "none",
        "zorder": 4,
    }
    axes.plot(at[-1:], means[-1:], marker=series.marker, markersize=6, **marker)
    final = group.over(lambda row: row.accuracy)
    train_s = group.over(lambda row: row.train_s)
    if local and final and train_s:
        end = [at[-1], train_s.mean], [means[-1], final.mean]
        axes.plot(*end, color=series.colour, linewidth=0.9, linestyle=(0, (1, 1.5)))
        axes.plot(end[0][1:], end[1][1:], marker="*", markersize=12, **marker)


def loss_curves(pair: OptimizerPair) -> Figure:
    """A line for each seed of the library's optimizer, and crosses in its colour for the textbook's."""
    textbook, library = pair.names
    legend = Legend()
    legend.explain(library, color=INK)
    legend.explain(textbook, color=INK, linestyle="none", marker="x")
    figure = Figure(figsize=(WIDTH_IN, LOSS_HEIGHT_IN + legend.height_in), layout="constrained")
    axes = figure.add_subplot()
    for (one, other), colour in zip(pair.runs, STRATEGY_COLOURS, strict=False):
        for row, drawn in ((other, {"linewidth": 1.6}), (one, {"linestyle": "none", "marker": "x"})):
            curve = losses(row)
            axes.plot(range(1, len(curve) + 1), curve, color=colour, **drawn)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("test loss")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    set_title(figure, f"{textbook} and {library}, batch {pair.textbook.first.run.batch_size:,}")
    legend.draw(figure)
    return figure
