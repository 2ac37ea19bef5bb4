"""Where to cut a model in two: what each place does to the time, the balance and the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report import formats
from orchestrator.report.figures.style import FAINT, WIDTH_IN, Legend, SeriesStyle, Style, set_title
from orchestrator.report.metrics.model_partition import balance, cut_bytes_per_step, step_s, work_s
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.split_points import halves

FEWEST = 3  # cuts, below which a table says it as well
FAR_APART = 30  # bytes these many times apart go on a logarithmic axis
STAGE_COLOURS = ("#5E7C99", "#E08A2E")


def step_by_cut(scene: WorkloadView, style: Style) -> Figure | None:
    """Time per step, each stage's time of work, and bytes over the cut; None without several cuts."""
    tried = halves(scene.groups)
    if not tried or len(tried.by_cut) < FEWEST:
        return None
    shown = list(tried.by_cut.values())
    legend = Legend()
    look = style.look(tried.stand_in)
    legend.add("step", look)
    for stage, colour in enumerate(STAGE_COLOURS):
        legend.explain(f"work of stage {stage}", linestyle="none", marker="s", color=colour, markersize=8)
    if tried.default:
        legend.explain("the default", color=FAINT, linestyle=(0, (2, 2)))
    figure = Figure(figsize=(WIDTH_IN, 4.4 + legend.height_in), layout="constrained")
    time, work, sent = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1.3, 0.8))
    _draw_times(time, shown, look)
    _draw_work(work, shown)
    amounts = [_mean(group, cut_bytes_per_step) for group in shown]
    sent.bar(range(len(shown)), amounts, width=0.6, color="#B8C4CE")
    if min(amounts) > 0 and max(amounts) > FAR_APART * min(amounts):
        sent.set_yscale("log")
        sent.set_ylim(min(amounts) / 4, 3 * max(amounts))
        sent.minorticks_off()
    sent.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.size(value)))
    for axes, title in (
        (time, "time per step"),
        (work, "work of each stage per step"),
        (sent, "sent over the cut per step" + (", log scale" if sent.get_yscale() == "log" else "")),
    ):
        axes.set_title(title)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", length=0)
        if tried.default:
            at = list(tried.by_cut).index(tried.default)
            axes.axvline(at, color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)), zorder=0)
    sent.set_xticks(range(len(shown)), list(tried.by_cut), rotation=35, ha="right", rotation_mode="anchor")
    sent.set_xlabel("the block with which stage 1 begins")
    set_title(figure, f"Where to cut: {tried.name}")
    legend.draw(figure)
    return figure


def _draw_times(axes: Axes, shown: Sequence[Group], look: SeriesStyle) -> None:
    spreads = [spread for group in shown if (spread := group.over(step_s))]
    at = range(len(spreads))
    axes.fill_between(
        at, [s.low for s in spreads], [s.high for s in spreads], color=look.colour, alpha=0.12
    )
    axes.plot(
        at,
        [s.mean for s in spreads],
        color=look.colour,
        marker=look.marker,
        markeredgecolor="white",
        linewidth=1.8,
    )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.seconds(value)))


def _draw_work(axes: Axes, shown: Sequence[Group]) -> None:
    """Two bars side by side, and above them how balanced they are."""
    for at, group in enumerate(shown):
        stages = [fmean(seconds) for seconds in zip(*map(work_s, group.ok_rows), strict=True)]
        for stage, (seconds, colour) in enumerate(zip(stages, STAGE_COLOURS, strict=True)):
            axes.bar(at + 0.37 * (stage - 0.5), seconds, width=0.35, color=colour)
        axes.annotate(
            f"{_mean(group, balance):.0%}",
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
