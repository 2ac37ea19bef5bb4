"""Who waits for whom: a small map for each of the runs in which most was waited."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report.figures.style import FULL_WIDTH_IN, WIDTH_IN, set_title, short_name
from orchestrator.report.formats import percent
from orchestrator.report.metrics.stragglers import mean_shares, most_waited_for
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group

MOST_PANELS = 6
MOST_ACROSS = 3
MOST_MAPPED = 32  # ranks; of more no cell can be seen
MOST_NUMBERED = 8  # ranks; in smaller cells a number has no room
PALE = 1.6  # how far the colours' end lies above the largest number: dark text is read on all of them
LEAST = 0.005  # of the training time: below that nobody waited


def straggler_attribution(scene: WorkloadView) -> Figure | None:
    """Heat maps rank × rank at the scene's shape; None if nobody waited, or nothing is known of it."""
    known = [(group, shares) for group in scene.usual if (shares := mean_shares(group)) is not None]
    shown = [item for item in known if item[1].max() >= LEAST and len(item[1]) <= MOST_MAPPED]
    shown = sorted(shown, key=lambda item: -item[1].sum())[:MOST_PANELS]
    if not shown:
        return None
    across = ceil(len(shown) / ceil(len(shown) / MOST_ACROSS))
    down = ceil(len(shown) / across)
    width = WIDTH_IN if across == 1 else FULL_WIDTH_IN
    ranks = len(shown[0][1])
    height = min(max(0.26 * ranks, 0.9), 3.2)
    figure = Figure(figsize=(width, 0.4 + down * (height + 0.95)), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    most = max(float(shares.max()) for _, shares in shown)
    noun = "node" if scene.shape.processes_per_node == 1 else "rank"
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    for at, (group, shares) in enumerate(shown):
        axes = grid.flat[at]
        _draw(axes, shares, most)
        _head(axes, group, shares, noun, width / across)
        axes.set_xlabel(f"{noun} waited for")
        if at % across == 0:
            axes.set_ylabel(f"{noun} that waits")
    if ranks > MOST_NUMBERED:
        panels = list(grid.flat[: len(shown)])
        bar = figure.colorbar(panels[0].collections[0], ax=panels, aspect=30, pad=0.01)
        bar.set_label("share of training time")
    set_title(figure, f"Who waits for whom, {scene.shape.label}")
    return figure


def _head(axes: Axes, group: Group, shares: np.ndarray, noun: str, width_in: float) -> None:
    name = "\n".join(wrap(short_name(group), int(width_in * 13)))
    most = most_waited_for(shares)
    note = f"\n{percent(most.of_waiting)} of all waiting is for {noun} {most.rank}" if most else ""
    axes.set_title(name + note, fontsize=8.5)


def _draw(axes: Axes, shares: np.ndarray, most: float) -> None:
    """most: the largest share on any of the maps, which are coloured alike."""
    ranks = len(shares)
    numbered = ranks <= MOST_NUMBERED
    own = np.eye(ranks, dtype=bool)
    axes.set_facecolor("#EEF0F2")  # nobody waits for itself
    axes.pcolormesh(
        np.ma.masked_where(own, shares),
        cmap="YlOrBr",
        vmin=0,
        vmax=PALE * most if numbered else most,
        edgecolors="white",
        linewidth=0.6 if numbered else 0.2,
    )
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7.5, pad=2)
    ticks: Sequence[int] = range(0, ranks, ceil(ranks / 16))
    axes.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    axes.set_yticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
    for (rank, other), share in np.ndenumerate(shares):
        if numbered and rank != other:
            axes.text(other + 0.5, rank + 0.5, f"{share:.0%}", ha="center", va="center", fontsize=8)
