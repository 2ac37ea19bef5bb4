"""Time to the target accuracy of each strategy on each number of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from orchestrator.report import formats
from orchestrator.report.figures.bars import bar_in, bar_names
from orchestrator.report.figures.style import FAINT, INK, WIDTH_IN, Style, set_title
from orchestrator.report.metrics.learning import seeds_at_target, time_to_target_s
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.spread import Spread

TIMES_WIDER = 1.35  # than the longest time, to leave room for annotations


def time_to_target(groups: Sequence[Group], style: Style) -> Figure | None:
    """One line per group, by strategy and ranks; None without a target.

    A dot is the mean over the seeds that reached it.
    """
    shown = [group for group in groups if group.ok and group.first.run.target_accuracy is not None]
    if not shown:
        return None
    lines = list(dict.fromkeys(group.line for group in shown))
    shown.sort(key=lambda group: (not group.serial, lines.index(group.line), group.shape.ranks))
    times = [group.over(time_to_target_s) for group in shown]
    labels = _labels(shown)
    figure = Figure(figsize=(WIDTH_IN, 1.0 + bar_in(labels) * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    longest = max((spread.high for spread in times if spread), default=1.0)
    for at, (group, spread) in enumerate(zip(shown, times, strict=True)):
        colour = style.series(group).colour
        if spread:
            axes.plot([spread.low, spread.high], [at, at], color=colour, linewidth=3, alpha=0.35)
            axes.plot(
                spread.mean,
                at,
                marker=style.series(group).marker,
                markersize=6.5,
                color=colour,
                markeredgecolor="white",
            )
        axes.annotate(
            _annotation(group, spread),
            (spread.high if spread else 0, at),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK if spread else FAINT,
        )
    axes.set_yticks(range(len(shown)), labels, linespacing=1.05)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, TIMES_WIDER * longest)
    axes.set_xlabel(f"{shown[0].first.clock} time, s")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    target = formats.percent(shown[0].first.run.target_accuracy)
    set_title(figure, f"Time to {target} test accuracy, by strategy and nodes")
    return figure


def _labels(shown: Sequence[Group]) -> list[str]:
    """The name of a strategy beside its first number of nodes, then the numbers alone."""
    firsts = {group.line: group for group in reversed(shown)}
    names = dict(zip(firsts, bar_names([*firsts.values()]), strict=True))
    labels = []
    for group in shown:
        name = names[group.line] if firsts[group.line] is group else ""
        labels.append(name if group.serial else ", ".join(filter(None, [name, group.shape.label])))
    return labels


def _annotation(group: Group, spread: Spread | None) -> str:
    reached, seeds = seeds_at_target(group)
    if spread is None:
        return f"not reached in {group.workload.epochs} epochs"
    some = f", {reached} of {seeds} seeds" if reached < seeds else ""
    return formats.seconds(spread.mean) + some
