"""Label maps: samples per node and label, one map per partition, one row of maps per number of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from statistics import fmean
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.report import formats
from orchestrator.report.figures.style import FULL_WIDTH_IN, WIDTH_IN, set_title
from orchestrator.report.model.labels import ClusterShape
from trainer.training.partition import PartitionSummary

MAX_COLUMNS = 3  # more maps in a row are too small to read
MAX_MAPPED_RANKS = 32  # ranks; more are drawn as a summary
TITLE_IN = 0.86  # a map's title and caption above, its tick labels below
SUMMARY_IN = 1.5
PALE = 1.8  # end of the colour scale / largest number, so that dark text stays readable
MAX_VECTOR_CELLS = 2000  # cells; more are rasterised to keep the file small
FONT_SIZES = (8.0, 7.0, 6.0)
NOTE_SIZE, NOTE_LINES = 7.5, 3
CHARACTER_EM = 0.62  # width of a digit
MARK_COLOUR = "#08519C"  # of the summary: the dark end of the maps' colours


@dataclass(frozen=True)
class LabelMap:
    """A partition and its name.

    replica_ranks: the ranks that train on each part, if there are several: `0–1`. seed: of the run whose
    partition it is, if there are runs with others.
    """

    partitioner: str
    shape: ClusterShape
    partition_summary: PartitionSummary
    replica_ranks: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def mapped(self) -> bool:
        """Whether every rank has its own row; many ranks are drawn as a summary."""
        return len(self.partition_summary.labels) <= MAX_MAPPED_RANKS

    @property
    def row_names(self) -> Sequence[str]:
        """The ranks of each row. Servers, which do not train, come before the first row."""
        first = self.shape.ranks - len(self.partition_summary.labels)
        return self.replica_ranks or [str(first + at) for at in range(len(self.partition_summary.labels))]


def label_maps(maps: Sequence[LabelMap]) -> Figure:
    """Heat maps rank × label. maps: at least one, sorted by the number of ranks."""
    rows = list(_rows(maps))
    across = max(map(len, rows))
    width = WIDTH_IN if across == 1 else FULL_WIDTH_IN
    heights = [TITLE_IN + _body_in(row) for row in rows]
    figure = Figure(figsize=(width, 0.3 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(rows), across, squeeze=False, height_ratios=heights)
    for all_axes, row in zip(grid, rows, strict=True):
        most = max(int(item.partition_summary.labels.max()) for item in row) or 1
        size = min(_font_size(item, width / across - 0.5) for item in row)
        for axes in all_axes[len(row) :]:
            axes.remove()
        for axes, item in zip(all_axes, row, strict=False):
            _set_title(axes, item, width / across)
            if item.mapped:
                _draw_map(axes, item, most, size)
            else:
                _draw_summary(axes, item.partition_summary, most)
        all_axes[0].set_ylabel(_unit(row[0]))
        if row[0].mapped and not size:
            shown = list(all_axes[: len(row)])
            figure.colorbar(shown[0].collections[0], ax=shown, label="samples", aspect=30, pad=0.01)
    for at, all_axes in enumerate(grid):
        for column in range(len(rows[at])):
            if at + 1 == len(rows) or column >= len(rows[at + 1]):
                all_axes[column].set_xlabel("label")
    per_node = all(item.shape.processes_per_node == 1 for item in maps)
    set_title(figure, f"Samples per {'node' if per_node else 'rank'} and label, epoch 1")
    return figure


def _rows(maps: Sequence[LabelMap]) -> Iterator[list[LabelMap]]:
    """The maps of one number of ranks side by side, in as many rows as needed."""
    for _, same_size in groupby(maps, key=lambda item: item.shape.ranks):
        row = list(same_size)
        across = ceil(len(row) / ceil(len(row) / MAX_COLUMNS))
        for start in range(0, len(row), across):
            yield row[start : start + across]


def _body_in(row: Sequence[LabelMap]) -> float:
    ranks = max((len(item.partition_summary.labels) for item in row if item.mapped), default=0)
    summary = 0.0 if all(item.mapped for item in row) else SUMMARY_IN
    return max(summary, min(0.2 * ranks, 3.6))


def _font_size(item: LabelMap, width_in: float) -> float:
    """Font size of the numbers in a map's cells, in points; 0 if they do not fit."""
    ranks, labels = item.partition_summary.labels.shape
    digits = len(str(item.partition_summary.labels.max()))
    for size in FONT_SIZES:
        wide, high = (digits * CHARACTER_EM * size + 2) / 72, 1.25 * size / 72
        if labels * wide <= width_in and ranks * high <= _body_in([item]):
            return size
    return 0.0


def _unit(item: LabelMap) -> str:
    if not item.mapped:
        return "samples: range,\nmiddle half, median"
    noun = item.shape.rank_noun
    return f"{noun}s" if item.replica_ranks else noun


def _set_title(axes: Axes, item: LabelMap, width_in: float) -> None:
    """The partition's name, and below it its sizes, coverage and skew."""
    seed = "" if item.seed is None else f", seed {item.seed}"
    name = wrap(f"{item.partitioner}, {item.shape.label}{seed}", int(width_in * 13))
    axes.set_title("\n".join(name), pad=4 + NOTE_LINES * 1.25 * NOTE_SIZE)
    note = axes.annotate(
        describe(item.partition_summary),
        (0, 1),
        (0, 3),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        fontsize=NOTE_SIZE,
        linespacing=1.2,
    )
    note.set_in_layout(False)  # the title's padding already reserves its space


def describe(summary: PartitionSummary) -> str:
    """Sizes, coverage and overlap, and label divergence, in three lines."""
    low, high = int(summary.sizes.min()), int(summary.sizes.max())
    sizes = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    if high - low > 1:
        sizes += f", mean {summary.sizes.mean():,.0f}"
    js, emd = summary.js_divergence, summary.earth_movers_distance
    skew = f"JS {formats.bits(fmean(js))}, max {formats.bits(max(js))}"
    if emd:
        skew += f"; EMD {formats.distance(fmean(emd))}, max {formats.distance(max(emd))}"
    spread = f"coverage {formats.percent(summary.coverage)}, overlap {formats.percent(summary.overlap)}"
    return f"{sizes} samples each\n{spread}\n{skew}"


def _draw_map(axes: Axes, item: LabelMap, most: int, font_size: float) -> None:
    """Draw one map. font_size: of the numbers, 0 for none. most: the largest number in the row of maps."""
    table = item.partition_summary.labels
    # A mesh stays sharp at any size, unlike an image. Empty cells are white.
    axes.pcolormesh(
        np.ma.masked_equal(table, 0),
        cmap="Blues",
        vmin=-0.06 * most,
        vmax=PALE * most if font_size else most,
        edgecolors="white",
        linewidth=0.6 if table.size < MAX_VECTOR_CELLS / 4 else 0.2,
        rasterized=table.size > MAX_VECTOR_CELLS,
    )
    axes.invert_yaxis()
    axes.spines[:].set_color("#D8DEE4")
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0, labelsize=7.5, pad=2)
    for set_ticks, names, most_ticks in (
        (axes.set_yticks, item.row_names, 16),
        (axes.set_xticks, list(map(str, range(len(table.T)))), 20),
    ):
        ticks = range(0, len(names), ceil(len(names) / most_ticks))
        set_ticks([tick + 0.5 for tick in ticks], [names[tick] for tick in ticks])
    for (rank, label), samples in np.ndenumerate(table):
        if samples and font_size:
            axes.text(label + 0.5, rank + 0.5, f"{samples}", ha="center", va="center", fontsize=font_size)


def _draw_summary(axes: Axes, summary: PartitionSummary, most: int) -> None:
    """Per label, over ranks: the range as a thin line, the middle half as a thick one, the median a dot."""
    at = np.arange(summary.labels.shape[1])
    low, quarter, median, three_quarters, high = np.percentile(summary.labels, (0, 25, 50, 75, 100), axis=0)
    axes.vlines(at, low, high, color=MARK_COLOUR, linewidth=1)
    axes.vlines(at, quarter, three_quarters, color="#9ECAE1", linewidth=5 if len(at) <= 20 else 2)
    axes.plot(at, median, "o", color=MARK_COLOUR, markersize=4 if len(at) <= 20 else 1.5)
    axes.set_ylim(0, 1.05 * most)
    axes.tick_params(length=0, labelsize=7.5, pad=2)
    ticks = range(0, len(at), ceil(len(at) / 20))
    axes.set_xticks(list(ticks))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
