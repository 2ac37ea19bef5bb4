"""Straggler attribution: a map rank × rank for each of the runs with most waiting."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report.figures.style import FULL_WIDTH_IN, WIDTH_IN, set_title, short_name
from orchestrator.report.formats import percent
from orchestrator.report.metrics.stragglers import mean_wait_shares, straggler_of
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group

MAX_PANELS = 6
MAX_COLUMNS = 3
MAX_MAPPED_RANKS = 32  # ranks; more cells are too small to see
MAX_NUMBERED_RANKS = 8  # ranks; smaller cells have no room for numbers
PALE = 1.6  # end of the colour scale / largest number, so that dark text stays readable
MIN_SHARE_SHOWN = 0.005  # of the wall time; less counts as no waiting


def straggler_attribution(view: WorkloadView) -> Figure | None:
    """Heat maps rank × rank at the view's shape; None if no rank waited, or waiting was not recorded."""
    known = [
        (group, shares)
        for group in view.reference_candidates
        if (shares := mean_wait_shares(group)) is not None
    ]
    shown = [
        item for item in known if item[1].max() >= MIN_SHARE_SHOWN and len(item[1]) <= MAX_MAPPED_RANKS
    ]
    shown = sorted(shown, key=lambda item: -item[1].sum())[:MAX_PANELS]
    if not shown:
        return None
    across = ceil(len(shown) / ceil(len(shown) / MAX_COLUMNS))
    down = ceil(len(shown) / across)
    width = WIDTH_IN if across == 1 else FULL_WIDTH_IN
    ranks = len(shown[0][1])
    height = min(max(0.26 * ranks, 0.9), 3.2)
    figure = Figure(figsize=(width, 0.4 + down * (height + 0.95)), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    most = max(float(shares.max()) for _, shares in shown)
    noun = view.shape.rank_noun
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    for at, (group, shares) in enumerate(shown):
        axes = grid.flat[at]
        _draw(axes, shares, most)
        _set_title(axes, group, shares, noun, width / across)
        axes.set_xlabel(f"{noun} waited for")
        if at % across == 0:
            axes.set_ylabel(f"waiting {noun}")
    if ranks > MAX_NUMBERED_RANKS:
        panels = list(grid.flat[: len(shown)])
        bar = figure.colorbar(panels[0].collections[0], ax=panels, aspect=30, pad=0.01)
        bar.set_label(f"share of {view.clock} time")
    set_title(figure, f"Straggler attribution, {view.shape.label}")
    return figure


def _set_title(axes: Axes, group: Group, shares: np.ndarray, noun: str, width_in: float) -> None:
    name = "\n".join(wrap(short_name(group), int(width_in * 13)))
    most = straggler_of(shares)
    note = f"\n{noun} {most.rank}: {percent(most.share_of_waiting)} of all waiting" if most else ""
    axes.set_title(name + note, fontsize=8.5)


def _draw(axes: Axes, shares: np.ndarray, most: float) -> None:
    """Draw one map. most: the largest share of all maps, which have one colour scale."""
    ranks = len(shares)
    numbered = ranks <= MAX_NUMBERED_RANKS
    own = np.eye(ranks, dtype=bool)
    axes.set_facecolor("#EEF0F2")  # no rank waits for itself
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
