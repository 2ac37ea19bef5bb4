"""Exchange per step against model size, for sweeps with several models."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from orchestrator.report import formats
from orchestrator.report.figures.style import WIDTH_IN, Legend, Style, set_title, short_name
from orchestrator.report.metrics.communication import exchange_s_per_step
from orchestrator.report.metrics.model_partition import model_size
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.statistics.spread import Spread

PLOT_IN = 2.9  # height without the legend
Point = tuple[int, Spread]  # parameters of the model, seconds


def models_alike(comparison: Comparison) -> list[Workload]:
    """The workloads that differ from the first one only in the model; none unless there are several."""
    workloads = comparison.workloads
    alike = [each for each in workloads if replace(each, model=workloads[0].model) == workloads[0]]
    return alike if len(alike) > 1 else []


def exchange_by_size(comparison: Comparison, style: Style) -> Figure | None:
    """One line per strategy and transport at the compared shape; None without several sizes."""
    workloads = models_alike(comparison)
    if not workloads:
        return None
    shape = comparison.view(workloads[0]).shape
    lines: dict[tuple[str, str], tuple[Group, list[Point]]] = {}
    for workload in workloads:
        view = comparison.view(workload)
        size = model_size(view.groups)
        for group in view.line_groups:
            spread = group.over(exchange_s_per_step)
            if size and spread and spread.low > 0 and group.shape == shape:
                _, points = lines.setdefault(group.line[:2], (group, []))
                points.append((size, spread))
    if len({size for _, points in lines.values() for size, _ in points}) < 2:
        return None
    return _drawn(list(lines.values()), style, shape)


def _drawn(lines: list[tuple[Group, list[Point]]], style: Style, shape: ClusterShape) -> Figure:
    ordered = sorted(lines, key=lambda line: -line[1][-1][1].mean)
    legend = Legend()
    for group, _ in ordered:
        legend.add(short_name(group), style.series(group))
    figure = Figure(figsize=(WIDTH_IN, PLOT_IN + legend.height_in), layout="constrained")
    axes = figure.add_subplot()
    for group, points in ordered:
        series, points = style.series(group), sorted(points, key=lambda point: point[0])
        sizes = [size for size, _ in points]
        lows, highs = [s.low for _, s in points], [s.high for _, s in points]
        axes.fill_between(sizes, lows, highs, color=series.colour, alpha=0.12, linewidth=0)
        means = [spread.mean for _, spread in points]
        axes.plot(
            sizes, means, color=series.colour, marker=series.marker, markeredgecolor="white", linewidth=1.8
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.seconds(value)))
    sizes = sorted({size for _, points in lines for size, _ in points})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("parameters of the model")
    axes.set_ylabel("exchange per step")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    set_title(figure, f"Exchange per step against model size, {shape.label}")
    legend.draw(figure)
    return figure
