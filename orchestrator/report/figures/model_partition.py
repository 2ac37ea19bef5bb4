"""Figures of model partitioning: memory of the fullest rank, pipeline bubbles, and split points."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from orchestrator.report import formats
from orchestrator.report.figures.bars import bar_in, bar_names, explain_colours, fold, stacked
from orchestrator.report.figures.style import (
    FAINT,
    INK,
    MEMORY_COLOURS,
    WIDTH_IN,
    Legend,
    SeriesStyle,
    Style,
    set_title,
    short_name,
)
from orchestrator.report.metrics.model_partition import (
    bubble,
    bubble_formula,
    busy_s,
    is_partitioned,
    load_balance,
    memory_by_kind,
    split_point_bytes_per_step,
    step_s,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.split_points import one_per_split, two_stage_splits

MIN_SPLIT_POINTS = 3  # fewer are shown by the table alone
FAR_APART = 30  # amounts that differ by this factor go on a logarithmic axis
STAGE_COLOURS = ("#5E7C99", "#E08A2E")


def memory_per_rank(view: WorkloadView) -> Figure | None:
    """Stacked bars of each strategy's fullest rank, serial first, then by size.

    None if all ranks of all strategies keep the same amount, or none recorded it.
    """
    shown = [(group, _memory(group)) for group in view.reference_candidates]
    shown = [(group, kinds) for group, kinds in shown if kinds]
    if not shown or not is_partitioned([group for group, _ in shown]):
        return None
    shown.sort(key=lambda item: sum(item[1].values()))
    if view.serial and (whole := _memory(view.serial)):
        shown.insert(0, (view.serial, whole))
    most = max(sum(kinds.values()) for _, kinds in shown)
    names = bar_names([group for group, _ in shown])
    figure = Figure(figsize=(WIDTH_IN, 1.25 + bar_in(names) * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for at, (_, kinds) in enumerate(shown):
        end = stacked(axes, at, kinds, MEMORY_COLOURS)
        axes.annotate(
            formats.size(end), (end, at), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(range(len(shown)), names, linespacing=1.05)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * most)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.size(value)))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    set_title(figure, f"Memory of the fullest rank, {view.shape.label}")
    explain_colours(figure, MEMORY_COLOURS)
    return figure


def _memory(group: Group) -> dict[str, float]:
    """Bytes of each kind, mean over seeds."""
    rows = [kinds for row in group.ok_rows if (kinds := memory_by_kind(row))]
    return {kind: fmean(each.get(kind, 0) for each in rows) for kind in MEMORY_COLOURS} if rows else {}


def bubbles(view: WorkloadView, style: Style) -> Figure | None:
    """The measured bubble and the formula for each pipeline of every size; None for a single one."""
    known = [group for group in one_per_split(view.groups) if group.over(bubble)]
    shown = sorted(known, key=_formula)
    if len(shown) < 2:
        return None
    names = [fold(f"{short_name(group)}, {group.shape.label}") for group in shown]
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.85 * bar_in(names) * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for at, group in enumerate(shown):
        if measured := group.over(bubble):
            series = style.series(group)
            axes.plot([measured.low, measured.high], [at, at], color=series.colour, linewidth=3, alpha=0.35)
            axes.plot(
                measured.mean,
                at,
                marker=series.marker,
                markersize=6,
                color=series.colour,
                markeredgecolor="white",
            )
        axes.plot(_formula(group), at, marker="|", markersize=11, markeredgewidth=1.8, color=INK)
    axes.set_yticks(range(len(shown)), names, fontsize=8.5, linespacing=1.05)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel(f"share of {view.clock} time")
    axes.grid(axis="both")
    axes.set_axisbelow(True)
    set_title(figure, "Pipeline bubble")
    legend = Legend()
    marker = style.series(shown[0]).marker
    legend.explain("measured", linestyle="none", marker=marker, markeredgecolor="white", markersize=6)
    legend.explain("formula", linestyle="none", marker="|", markersize=11, markeredgewidth=1.8)
    legend.draw(figure)
    return figure


def _formula(group: Group) -> float:
    formula = group.over(bubble_formula)
    return formula.mean if formula else 0.0


def split_points_figure(view: WorkloadView, style: Style) -> Figure | None:
    """Time per step, busy time of each stage, and traffic by split point; None with few split points."""
    splits = two_stage_splits(view.groups)
    if not splits or len(splits.by_block) < MIN_SPLIT_POINTS:
        return None
    shown = list(splits.by_block.values())
    legend = Legend()
    series = style.series(splits.representative)
    legend.add("step", series)
    for stage, colour in enumerate(STAGE_COLOURS):
        legend.explain(f"stage {stage} busy", linestyle="none", marker="s", color=colour, markersize=8)
    if splits.default:
        legend.explain("default", color=FAINT, linestyle=(0, (2, 2)))
    figure = Figure(figsize=(WIDTH_IN, 4.4 + legend.height_in), layout="constrained")
    time, busy, sent = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1.3, 0.8))
    _draw_times(time, shown, series)
    _draw_busy(busy, shown)
    amounts = [_mean(group, split_point_bytes_per_step) for group in shown]
    sent.bar(range(len(shown)), amounts, width=0.6, color="#B8C4CE")
    if min(amounts) > 0 and max(amounts) > FAR_APART * min(amounts):
        sent.set_yscale("log")
        sent.set_ylim(min(amounts) / 4, 3 * max(amounts))
        sent.minorticks_off()
    sent.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.size(value)))
    for axes, title in (
        (time, "time per step"),
        (busy, "busy time of each stage per step"),
        (
            sent,
            "traffic over the split point per step" + (", log scale" if sent.get_yscale() == "log" else ""),
        ),
    ):
        axes.set_title(title)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", length=0)
        if splits.default:
            at = list(splits.by_block).index(splits.default)
            axes.axvline(at, color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)), zorder=0)
    sent.set_xticks(
        range(len(shown)), list(splits.by_block), rotation=35, ha="right", rotation_mode="anchor"
    )
    sent.set_xlabel("first block of stage 1")
    set_title(figure, f"Split points of {splits.name}")
    legend.draw(figure)
    return figure


def _draw_times(axes: Axes, shown: Sequence[Group], series: SeriesStyle) -> None:
    spreads = [spread for group in shown if (spread := group.over(step_s))]
    at = range(len(spreads))
    axes.fill_between(
        at, [s.low for s in spreads], [s.high for s in spreads], color=series.colour, alpha=0.12
    )
    axes.plot(
        at,
        [s.mean for s in spreads],
        color=series.colour,
        marker=series.marker,
        markeredgecolor="white",
        linewidth=1.8,
    )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.seconds(value)))


def _draw_busy(axes: Axes, shown: Sequence[Group]) -> None:
    """The busy time of both stages side by side, with their load balance above."""
    for at, group in enumerate(shown):
        stages = [fmean(seconds) for seconds in zip(*map(busy_s, group.ok_rows), strict=True)]
        for stage, (seconds, colour) in enumerate(zip(stages, STAGE_COLOURS, strict=True)):
            axes.bar(at + 0.37 * (stage - 0.5), seconds, width=0.35, color=colour)
        axes.annotate(
            f"{_mean(group, load_balance):.0%}",
            (at, max(stages)),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
        )
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.seconds(value)))


def _mean(group: Group, metric: Metric) -> float:
    spread = group.over(metric)
    return spread.mean if spread else 0.0
