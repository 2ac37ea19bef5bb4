"""Label maps: samples per node and label, one map per partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np

from orchestrator.report import formats
from orchestrator.report.figures.chart import FULL_WIDTH, WIDTH, Chart, chart_of, data_of, layered
from orchestrator.report.figures.lazy import alt
from orchestrator.report.figures.theme import colour
from orchestrator.report.model.labels import ClusterShape
from trainer.training.partition import PartitionSummary

MAX_COLUMNS = 3  # more maps in a row are too small to read
MAX_MAPPED_RANKS = 32  # ranks; more are drawn as a summary
MAX_MAPPED_LABELS = 100
MOST_CELLS = 12_000  # of a figure, which keeps the page small; the largest maps become summaries
ROW, BODY, SUMMARY = 20, 400, 150  # pixels of a row, of the highest map, of a summary
GAP = 50  # pixels between maps
FONT_SIZES = (11, 10, 9)
CHARACTER = 0.6  # width of a digit / font size
NUMBERED_OPACITY = 0.55  # of the largest number, so that text over it stays readable
PALEST = 0.06  # opacity of a single sample: an empty cell is the page's colour
MOST_RANK_TICKS, MOST_LABEL_TICKS = 16, 20


@dataclass(frozen=True)
class LabelMap:
    """A partition and its name.

    replica_ranks: the ranks that train on each part, if there are several: `0–1`. seed: that of the
    run whose partition it is, if there are runs with others.
    """

    partitioner: str
    shape: ClusterShape
    partition_summary: PartitionSummary
    replica_ranks: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def mapped(self) -> bool:
        """Whether every rank has its own row; many ranks or labels are drawn as a summary."""
        ranks, labels = self.partition_summary.labels.shape
        return bool(ranks <= MAX_MAPPED_RANKS and labels <= MAX_MAPPED_LABELS)

    @property
    def cells(self) -> int:
        """How many cells its map has."""
        return int(np.count_nonzero(self.partition_summary.labels))

    @property
    def row_names(self) -> Sequence[str]:
        """The ranks of each row. Servers, which do not train, come before the first row."""
        first = self.shape.ranks - len(self.partition_summary.labels)
        return self.replica_ranks or [str(first + at) for at in range(len(self.partition_summary.labels))]


def label_maps(maps: Sequence[LabelMap]) -> Chart:
    """Heat maps rank × label. maps: at least one, sorted by the number of ranks."""
    rows = list(_rows(maps))
    across = max(map(len, rows))
    width = WIDTH if across == 1 else (FULL_WIDTH + GAP) // across - GAP
    most_cells = _most_cells([item for item in maps if item.mapped])
    of_size = {ranks: _Scale.of(list(same), width, most_cells) for ranks, same in groupby(maps, key=_ranks)}
    drawn = [
        alt.hconcat(
            *(_panel(item, of_size[_ranks(item)], width) for item in row), spacing=GAP
        ).resolve_scale(opacity="independent")
        for row in rows
    ]
    per_node = all(item.shape.processes_per_node == 1 for item in maps)
    title = f"Samples per {'node' if per_node else 'rank'} and label, epoch 1"
    figure = alt.vconcat(*drawn, spacing=24).resolve_scale(opacity="independent")
    return Chart.of(figure.properties(title=title), wide=across > 1)


def _ranks(item: LabelMap) -> int:
    return item.shape.ranks


def _rows(maps: Sequence[LabelMap]) -> Iterator[Sequence[LabelMap]]:
    """A row for each number of ranks, if all have equally many maps; otherwise rows of equal length."""
    sizes = [len(list(same)) for _, same in groupby(maps, key=_ranks)]
    across = sizes[0]
    if len(set(sizes)) > 1 or not 1 < across <= MAX_COLUMNS:
        across = ceil(len(maps) / ceil(len(maps) / MAX_COLUMNS))
    for start in range(0, len(maps), across):
        yield maps[start : start + across]


@dataclass(frozen=True)
class _Scale:
    """What the maps of one number of ranks share.

    most: their largest number. mapped: whether they are maps and not summaries. font_size: that of the
    numbers in cells, in pixels; 0 if they do not fit.
    """

    most: int
    mapped: bool
    font_size: int

    @classmethod
    def of(cls, maps: Sequence[LabelMap], width: int, most_cells: int) -> _Scale:
        most = max(int(item.partition_summary.labels.max()) for item in maps) or 1
        mapped = all(item.mapped and item.cells <= most_cells for item in maps)
        return cls(most, mapped, min(_font_size(item, width) for item in maps))


def _most_cells(maps: Sequence[LabelMap]) -> int:
    """How many cells a map may have, so that all together stay within MOST_CELLS."""
    largest = sorted((item.cells for item in maps), reverse=True)
    while sum(largest) > MOST_CELLS:
        largest.pop(0)
    return largest[0] if largest else 0


def _height(item: LabelMap) -> int:
    return min(ROW * len(item.partition_summary.labels), BODY)


def _font_size(item: LabelMap, width: int) -> int:
    """Font size of the numbers in a map's cells, in pixels; 0 if they do not fit."""
    ranks, labels = item.partition_summary.labels.shape
    digits = len(str(item.partition_summary.labels.max()))
    for size in FONT_SIZES:
        if labels * (digits * CHARACTER * size + 3) <= width and ranks * 1.25 * size <= _height(item):
            return size
    return 0


def _panel(item: LabelMap, scale: _Scale, width: int) -> alt.LayerChart:
    """The map or the summary below the partition's name, sizes, coverage and skew."""
    seed = "" if item.seed is None else f", seed {item.seed}"
    title = alt.TitleParams(
        wrap(f"{item.partitioner}, {item.shape.label}{seed}", width // 7),
        subtitle=describe(item.partition_summary).splitlines(),
        fontWeight="normal",
    )
    drawn = (
        _map(item, scale.most, scale.font_size)
        if scale.mapped
        else _summary(item.partition_summary, scale.most)
    )
    return drawn.properties(title=title, width=width)


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


def _map(item: LabelMap, most: int, font_size: int) -> alt.LayerChart:
    """One map. font_size: 0 for no numbers. most: the largest number of maps of this size."""
    noun = item.shape.rank_noun
    data = data_of(_cells(item, noun))
    names, labels = list(item.row_names), item.partition_summary.labels.shape[1]
    base = alt.Chart(data).encode(
        x=alt.X(
            "label:O",
            scale=alt.Scale(domain=list(range(labels))),
            axis=_axis(list(range(labels)), MOST_LABEL_TICKS, "label"),
        ),
        y=alt.Y(
            f"{noun}:O",
            scale=alt.Scale(domain=names),
            axis=_axis(names, MOST_RANK_TICKS, f"{noun}s" if item.replica_ranks else noun),
        ),
    )
    legend = alt.Legend(title="samples", orient="top", symbolFillColor=colour("map"))
    cells = base.mark_rect(
        color=colour("map"), stroke=colour("paper"), strokeWidth=1 if font_size else 0.3, aria=False
    ).encode(
        opacity=alt.Opacity(
            "samples:Q",
            scale=alt.Scale(domain=[0, most], range=[PALEST, NUMBERED_OPACITY if font_size else 1.0]),
            legend=None if font_size else legend,
        ),
        tooltip=[
            alt.Tooltip(f"{noun}:O"),
            alt.Tooltip("label:O"),
            alt.Tooltip("samples:Q", format=","),
            alt.Tooltip("share:Q", title=f"of all on the {noun}", format=".1%"),
        ],
    )
    if not font_size:
        return layered(cells).properties(height=_height(item))
    return layered(cells, base.mark_text(fontSize=font_size).encode(text="samples:Q")).properties(
        height=_height(item)
    )


def _axis(values: Sequence[Any], most: int, title: str) -> alt.Axis:
    """An axis of names, with so many labels at most."""
    return alt.Axis(
        title=title,
        values=list(values[:: ceil(len(values) / most)]),
        ticks=False,
        domain=False,
        labelAngle=0,
        labelFontSize=11,
    )


def _cells(item: LabelMap, noun: str) -> list[dict[str, Any]]:
    """A record for each rank and label with samples."""
    names, table = item.row_names, item.partition_summary.labels
    totals = np.maximum(table.sum(axis=1), 1)
    return [
        {
            noun: names[rank],
            "label": label,
            "samples": int(samples),
            "share": round(float(samples / totals[rank]), 4),
        }
        for (rank, label), samples in np.ndenumerate(table)
        if samples
    ]


def _summary(summary: PartitionSummary, most: int) -> alt.LayerChart:
    """Per label, over ranks: the range as a thin line, the middle half as a thick one, the median a dot."""
    quantiles = np.percentile(summary.labels, (0, 25, 50, 75, 100), axis=0).T
    fields = ("least", "lower quarter", "median", "upper quarter", "most")
    records = [
        {"label": label, **dict(zip(fields, map(float, values), strict=True))}
        for label, values in enumerate(quantiles)
    ]
    labels = [*range(len(records))]
    few = len(labels) <= MOST_LABEL_TICKS
    axis = alt.Axis(
        title=["samples: range,", "middle half, median"], grid=True, tickCount=4, labelFontSize=11
    )
    base = chart_of(records).encode(
        x=alt.X("label:O", axis=_axis(labels, MOST_LABEL_TICKS, "label")),
        tooltip=["label:O", *(f"{field}:Q" for field in fields)],
    )
    scale = alt.Scale(domain=[0, 1.05 * most], nice=False)
    spans = base.mark_rule(color=colour("map"), aria=False).encode(
        y=alt.Y("least:Q", axis=axis, scale=scale), y2="most:Q"
    )
    middle = base.mark_rule(
        color=colour("map"), opacity=0.4, strokeWidth=7 if few else 2, aria=False
    ).encode(y="lower quarter:Q", y2="upper quarter:Q")
    medians = base.mark_circle(color=colour("map"), size=36 if few else 8, opacity=1, aria=False).encode(
        y="median:Q"
    )
    return layered(spans, middle, medians).properties(height=SUMMARY)
