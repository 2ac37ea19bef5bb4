"""How long the stages of a pipeline stand idle, and how long they would have to."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from orchestrator.report.figures.bars import bar_in, fold
from orchestrator.report.figures.style import INK, WIDTH_IN, Legend, Style, set_title, short_name
from orchestrator.report.metrics.model_partition import bubble, bubble_formula
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.split_points import one_of_each


def bubbles(scene: WorkloadView, style: Style) -> Figure | None:
    """A line for each pipeline of every size, measured and by formula; None for a single one."""
    known = [group for group in one_of_each(scene.groups) if group.over(bubble)]
    shown = sorted(known, key=_formula)
    if len(shown) < 2:
        return None
    names = [fold(f"{short_name(group)}, {group.shape.label}") for group in shown]
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.85 * bar_in(names) * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for at, group in enumerate(shown):
        if measured := group.over(bubble):
            look = style.look(group)
            axes.plot([measured.low, measured.high], [at, at], color=look.colour, linewidth=3, alpha=0.35)
            axes.plot(
                measured.mean,
                at,
                marker=look.marker,
                markersize=6,
                color=look.colour,
                markeredgecolor="white",
            )
        axes.plot(_formula(group), at, marker="|", markersize=11, markeredgewidth=1.8, color=INK)
    axes.set_yticks(range(len(shown)), names, fontsize=8.5, linespacing=1.05)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("of training time")
    axes.grid(axis="both")
    axes.set_axisbelow(True)
    set_title(figure, "Bubble: stages idle and waiting")
    legend = Legend()
    marker = style.look(shown[0]).marker
    legend.explain("measured", linestyle="none", marker=marker, markeredgecolor="white", markersize=6)
    legend.explain("by the formula", linestyle="none", marker="|", markersize=11, markeredgewidth=1.8)
    legend.draw(figure)
    return figure


def _formula(group: Group) -> float:
    formula = group.over(bubble_formula)
    return formula.mean if formula else 0.0
