"""Small timelines: what each rank does during a few steps, one panel per run."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from orchestrator.replay.windows import Steps, Window
from orchestrator.report.figures.bars import explain_colours
from orchestrator.report.figures.style import FULL_WIDTH_IN, PHASE_COLOURS, set_title, short_name
from orchestrator.report.formats import JOIN, significant, whole
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.timelines import Timeline

ACROSS = 2
MOST_RANKS = 16  # lines of a panel
RANK_IN = 0.15
WIDEST = 62  # characters of a title

_BOX = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)


def small_timelines(view: WorkloadView, timelines: Sequence[Timeline]) -> Figure | None:
    """A panel for each run, with a line per rank; None without runs."""
    if not timelines:
        return None
    across = min(ACROSS, len(timelines))
    down = ceil(len(timelines) / across)
    ranks = [_shown(each.window) for each in timelines]
    heights = [max(ranks[row * across : (row + 1) * across]) * RANK_IN for row in range(down)]
    figure = Figure(figsize=(FULL_WIDTH_IN, 0.6 + sum(heights) + 0.95 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes in grid.flat[len(timelines) :]:
        axes.remove()
    for axes, timeline in zip(grid.flat, timelines, strict=False):
        _draw(axes, timeline.window)
        axes.set_title(_title(timeline, view), fontsize=8.5)
    for axes in grid[:, 0]:
        axes.set_ylabel("rank", fontsize=8.5)
    drawn = {part.phase for each in timelines for rank in each.window.ranks for part in rank}
    set_title(figure, f"Timelines of the slowest runs, in {view.clock} time")
    explain_colours(figure, {phase: colour for phase, colour in PHASE_COLOURS.items() if phase in drawn})
    return figure


def _shown(window: Window) -> int:
    return min(len(window.ranks), MOST_RANKS)


def _title(timeline: Timeline, view: WorkloadView) -> str:
    """`all_reduce · gloo, 4 nodes, seed 1`, and which part of the run is shown."""
    run = timeline.run
    size = run.group.shape.short if run.group.shape.per_node else run.group.shape.label
    name = f"{short_name(run.group)}{view.partitioner(run.group)}, {size}, seed {run.row.seed}"
    ranks = len(timeline.window.ranks)
    hidden = f"; the first {MOST_RANKS} of {ranks} ranks" if ranks > MOST_RANKS else ""
    return "\n".join([*wrap(name, WIDEST), f"{_part(timeline.windows.steps)}{hidden}"])


def _part(steps: Steps | None) -> str:
    if steps is None:
        return "the whole run"
    if steps.exchange:
        return f"around the exchange after step {whole(steps.last)} of {whole(steps.of)}"
    return f"steps {whole(steps.first)} to {whole(steps.last)} of {whole(steps.of)}"


def _draw(axes: Axes, window: Window) -> None:
    ranks = _shown(window)
    boxes: dict[str, list[tuple[float, float, int]]] = {}
    for rank, parts in enumerate(window.ranks[:ranks]):
        for part in parts:
            box = 1e3 * (part.start_s - window.start_s), 1e3 * (part.end_s - window.start_s), rank
            boxes.setdefault(part.phase, []).append(box)
    for phase, found in boxes.items():
        axes.add_patch(PathPatch(_path(found), facecolor=PHASE_COLOURS[phase], linewidth=0))
    axes.set_xlim(0, max(1e3 * (window.end_s - window.start_s), 1e-6))
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_yticks(range(0, ranks, ceil(ranks / 8)))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelsize=8)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"ms after {significant(window.start_s, 4)}{JOIN}s", fontsize=8.5)


def _path(boxes: Sequence[tuple[float, float, int]]) -> Path:
    """All boxes of one colour as one shape, since a run has many."""
    corners = [
        corner
        for left, right, rank in boxes
        for top, bottom in [(rank - 0.42, rank + 0.42)]
        for corner in [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    ]
    return Path(np.array(corners), np.tile(_BOX, len(boxes)))
