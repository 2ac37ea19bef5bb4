"""Where the time went, and which labels lay on which node."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from orchestrator.report.groups import Group
from orchestrator.report.labels import Shape
from orchestrator.report.plots.style import PHASE_COLOURS, WIDTH_IN, set_title, short_name
from orchestrator.report.rows import Row
from orchestrator.result import CertifiedPart

BAR_IN = 0.3
FAR_LONGER = 3
PALE = 1.8  # how far the colours' end lies above the largest number: dark text is read on all of them
MOST_NUMBERED = 400  # cells; more of them have no room for their numbers
MOST_VECTORS = 2000  # cells; more of them make a large file


def time_by_phase(groups: Sequence[Group], shape: Shape) -> Figure | None:
    """Stacked bars, serial first and then the fastest first; None if no run measured its phases."""
    shown = [(group, phases(group)) for group in groups if group.serial or group.shape == shape]
    shown = [(group, seconds) for group, seconds in shown if sum(seconds.values()) > 0]
    longest = max((sum(seconds.values()) for group, seconds in shown if not group.serial), default=0.0)
    if longest:  # where serial takes far longer, its bar would leave no room to see the others' phases
        shown = [item for item in shown if sum(item[1].values()) <= FAR_LONGER * longest]
    if not shown:
        return None
    shown.sort(key=lambda item: (not item[0].serial, sum(item[1].values())))
    names = list(dict.fromkeys(phase for _, seconds in shown for phase in seconds))
    names.sort(
        key=lambda phase: list(PHASE_COLOURS).index(phase) if phase in PHASE_COLOURS else len(PHASE_COLOURS)
    )
    labels = _names([group for group, _ in shown])
    bar_in = BAR_IN * (1.25 if any("\n" in label for label in labels) else 1.0)
    figure = Figure(figsize=(WIDTH_IN, 1.25 + bar_in * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    colours = {phase: PHASE_COLOURS.get(phase, PHASE_COLOURS["other"]) for phase in names}
    for at, (group, seconds) in enumerate(shown):
        left = 0.0
        for phase in names:
            length = seconds.get(phase, 0.0)
            axes.barh(
                at, length, left=left, height=0.68, color=colours[phase], edgecolor="white", linewidth=0.4
            )
            left += length
        share = group.over(lambda row: row.exchange_share)
        if share and not group.serial:
            axes.annotate(
                f"{share.mean:.0%}", (left, at), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_yticks(range(len(shown)), labels, linespacing=0.95)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(sum(seconds.values()) for _, seconds in shown))
    axes.set_xlabel("s, mean over ranks and seeds")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    size = f"{shape.short} ranks" if shape.per_node else shape.label  # room for one line
    set_title(figure, f"Where the time went, {size}  (%: communicate and wait)")
    figure.legend(
        [Patch(color=colour) for colour in colours.values()],
        list(colours),
        loc="outside lower left",
        ncols=len(colours),
        handlelength=1.0,
        handletextpad=0.5,
        columnspacing=1.0,
    )
    return figure


def phases(group: Group) -> dict[str, float]:
    """Mean seconds per phase of training over nodes and seeds."""
    rows = [row.seconds for row in group.ok_rows if row.seconds]
    names = dict.fromkeys(phase for seconds in rows for phase in seconds if phase != "evaluate")
    return {phase: fmean(seconds.get(phase, 0.0) for seconds in rows) for phase in names}


def labels_by_node(rows: Sequence[Row]) -> Figure | None:
    """A heat map node × label for each row, which stands for its partitioner; None without any row."""
    if not rows:
        return None
    tables = [np.array([part.labels for part in _parts(row)]) for row in rows]
    heights = [0.45 + min(0.24 * len(table), 3.2) for table in tables]
    figure = Figure(figsize=(WIDTH_IN, 0.55 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    most = max(int(table.max()) for table in tables) or 1
    mesh = None
    numbered = all(table.size <= MOST_NUMBERED and table.shape[1] <= 20 for table in tables)
    for axes, row, table in zip(panels, rows, tables, strict=True):
        # A mesh and not an image: it stays sharp at any size, until there are too many cells.
        mesh = axes.pcolormesh(
            table,
            cmap="Blues",
            vmin=0,
            vmax=PALE * most if numbered else most,
            edgecolors="white" if numbered else "face",
            linewidth=0.6 if numbered else 0.2,
            rasterized=table.size > MOST_VECTORS,
        )
        axes.invert_yaxis()
        axes.set_title(f"{row.partitioner_label}, {row.shape.label}")
        axes.set_ylabel("node" if row.shape.processes_per_node == 1 else "rank")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        ranks = [part.rank for part in _parts(row)]  # not from 0 where the first is a server
        for set_ticks, names, most_ticks in (
            (axes.set_yticks, ranks, 16),
            (axes.set_xticks, range(table.shape[1]), 20),
        ):
            ticks = range(0, len(names), ceil(len(names) / most_ticks))
            set_ticks([tick + 0.5 for tick in ticks], [str(names[tick]) for tick in ticks])
        if numbered:
            for (node, label), samples in np.ndenumerate(table):
                axes.text(label + 0.5, node + 0.5, f"{samples}", ha="center", va="center", fontsize=8)
    panels[-1].set_xlabel("label")
    if not numbered and mesh is not None:
        figure.colorbar(mesh, ax=list(panels), label="samples", shrink=0.8)
    set_title(figure, "Samples per rank and label, epoch 1")
    return figure


def representatives(groups: Sequence[Group]) -> list[Row]:
    """For each partitioner its first run with a certificate at its largest number of nodes."""
    chosen: dict[str, Row] = {}
    for group in groups:
        certified = [row for row in group.ok_rows if row.partitioner_label and _parts(row)]
        if certified:
            best = chosen.get(group.partitioner_label)
            if best is None or certified[0].shape.ranks > best.shape.ranks:
                chosen[group.partitioner_label] = certified[0]
    return list(chosen.values())


def _parts(row: Row) -> list[CertifiedPart]:
    return row.result.certificate.first_epoch() if row.result.certificate else []


def _names(groups: Sequence[Group]) -> list[str]:
    """Names for bars: with the partitioner where the rest of the name does not tell two of them apart."""
    short = [short_name(group) for group in groups]
    return [
        f"{name}\n{group.partitioner_label}" if short.count(name) > 1 else name
        for name, group in zip(short, groups, strict=True)
    ]
