"""Stacked bars: training time by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.report.figures.style import PHASE_COLOURS, WIDTH_IN, set_title, short_name
from orchestrator.report.formats import JOIN
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import ClusterShape

BAR_IN = 0.3
LONGEST = 32  # characters of a name in one line
FAR_LONGER = 3


def time_by_phase(groups: Sequence[Group], shape: ClusterShape) -> Figure | None:
    """Stacked bars, serial first, then by time; None if no run measured its phases."""
    shown = [(group, phases(group)) for group in groups if group.serial or group.shape == shape]
    shown = [(group, seconds) for group, seconds in shown if sum(seconds.values()) > 0]
    longest = max((sum(seconds.values()) for group, seconds in shown if not group.serial), default=0.0)
    if longest:  # a far longer serial bar would leave no room for the others' phases
        shown = [item for item in shown if sum(item[1].values()) <= FAR_LONGER * longest]
    if not shown:
        return None
    shown.sort(key=lambda item: (not item[0].serial, sum(item[1].values())))
    names = list(dict.fromkeys(phase for _, seconds in shown for phase in seconds))
    names.sort(
        key=lambda phase: list(PHASE_COLOURS).index(phase) if phase in PHASE_COLOURS else len(PHASE_COLOURS)
    )
    labels = bar_names([group for group, _ in shown])
    figure = Figure(figsize=(WIDTH_IN, 1.25 + bar_in(labels) * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    colours = {phase: PHASE_COLOURS.get(phase, PHASE_COLOURS["other"]) for phase in names}
    for at, (group, seconds) in enumerate(shown):
        left = stacked(axes, at, seconds, colours)
        share = group.over(lambda row: row.exchange_share)
        if share and not group.serial:
            axes.annotate(
                f"{share.mean:.0%}", (left, at), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_yticks(range(len(shown)), labels, linespacing=1.05)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(sum(seconds.values()) for _, seconds in shown))
    axes.set_xlabel("s, mean over ranks and seeds")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    size = f"{shape.short} ranks" if shape.per_node else shape.label  # room for one line
    clock = shown[0][0].first.clock.capitalize()
    gap = "\n" if shape.slower else "  "  # the speeds of slower nodes make the title too long for one line
    set_title(figure, f"{clock} time by phase, {size}{gap}(%: communicate and wait)")
    explain_colours(figure, colours)
    return figure


def phases(group: Group) -> dict[str, float]:
    """Mean seconds per phase over ranks and seeds, without evaluation."""
    rows = [row.seconds for row in group.ok_rows if row.seconds]
    names = dict.fromkeys(phase for seconds in rows for phase in seconds if phase != "evaluate")
    return {phase: fmean(seconds.get(phase, 0.0) for seconds in rows) for phase in names}


def stacked(axes: Axes, at: int, amounts: Mapping[str, float], colours: Mapping[str, str]) -> float:
    """Draw a stacked bar in the order of the colours. Returns its length."""
    left = 0.0
    for name, colour in colours.items():
        length = amounts.get(name, 0.0)
        axes.barh(at, length, left=left, height=0.68, color=colour, edgecolor="white", linewidth=0.4)
        left += length
    return left


def explain_colours(figure: Figure, colours: Mapping[str, str]) -> None:
    """Draw a legend of colours in one line under the figure."""
    figure.legend(
        [Patch(color=colour) for colour in colours.values()],
        list(colours),
        loc="outside lower left",
        ncols=len(colours),
        handlelength=1.0,
        handletextpad=0.5,
        columnspacing=1.0,
    )


def bar_names(groups: Sequence[Group]) -> list[str]:
    """Names of bars, with the partitioner if the names would otherwise be equal."""
    short = [short_name(group) for group in groups]
    return [
        f"{fold(name)}\n{group.partitioner_label}" if short.count(name) > 1 else fold(name)
        for name, group in zip(short, groups, strict=True)
    ]


def fold(name: str) -> str:
    """A name, wrapped to leave room for the bars."""
    if len(name) <= LONGEST:
        return name
    joined = name.replace(" · ", f" ·{JOIN}")
    return fill(joined, LONGEST, break_long_words=False, break_on_hyphens=False)


def bar_in(names: Sequence[str]) -> float:
    """The height of a bar in inches, for these names."""
    lines = max(name.count("\n") for name in names) + 1
    return BAR_IN * (1 + 0.3 * (lines - 1))
