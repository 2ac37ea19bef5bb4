"""What a node must have room for: the reason to cut a model at all."""

from __future__ import annotations

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from orchestrator.report import formats
from orchestrator.report.figures.bars import bar_in, bar_names, explain_colours, stacked
from orchestrator.report.figures.style import MEMORY_COLOURS, WIDTH_IN, set_title
from orchestrator.report.metrics.model_partition import divides, memory_by_kind
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group


def memory_per_rank(scene: WorkloadView) -> Figure | None:
    """Stacked bars of each strategy's fullest rank, serial first and then the one with least; None where
    every rank of every strategy keeps as much, or none recorded it."""
    shown = [(group, _memory(group)) for group in scene.usual]
    shown = [(group, kinds) for group, kinds in shown if kinds]
    if not shown or not divides([group for group, _ in shown]):
        return None
    shown.sort(key=lambda item: sum(item[1].values()))
    if scene.serial and (whole := _memory(scene.serial)):
        shown.insert(0, (scene.serial, whole))
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
    set_title(figure, f"What the fullest rank keeps, {scene.shape.label}")
    explain_colours(figure, MEMORY_COLOURS)
    return figure


def _memory(group: Group) -> dict[str, float]:
    """Bytes of each kind, mean over seeds."""
    rows = [kinds for row in group.ok_rows if (kinds := memory_by_kind(row))]
    return {kind: fmean(each.get(kind, 0) for each in rows) for kind in MEMORY_COLOURS} if rows else {}
