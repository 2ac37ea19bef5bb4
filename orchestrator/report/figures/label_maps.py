"""Label maps: samples per node and label, one map per partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import numpy as np

from orchestrator.report import formats
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.maps import MAX_COLUMNS, Map, maps
from orchestrator.report.model.labels import ClusterShape
from trainer.training.partition import PartitionSummary

MOST_RANKS, MOST_LABELS = 32, 100  # of a map
MOST_CELLS = 12_000  # of a figure, which keeps the page small
PALEST = 0.06  # opacity of a single sample: an empty cell is the page's colour


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
    def row_names(self) -> Sequence[str]:
        """The ranks of each row. Servers, which do not train, come before the first row."""
        first = self.shape.ranks - len(self.partition_summary.labels)
        return self.replica_ranks or [str(first + at) for at in range(len(self.partition_summary.labels))]

    @property
    def most(self) -> int:
        """The most samples of a label on a rank."""
        return int(self.partition_summary.labels.max()) or 1


def label_maps(shown: Sequence[LabelMap]) -> Chart:
    """Maps rank × label. shown: at least one, sorted by the number of ranks; colours compare at each.

    A row for each number of ranks, if all have equally many maps; otherwise rows of equal length.
    """
    sizes = [[*same] for _, same in groupby(shown, key=lambda each: each.shape.ranks)]
    per_size = {*map(len, sizes)}
    across = per_size.pop() if len(per_size) == 1 else 1
    labels = max(min(each.partition_summary.labels.shape[1], MOST_LABELS) for each in shown)
    ranks = max(2, min(MOST_RANKS, MOST_CELLS // (labels * len(shown))))
    found = [_map(each, ranks, max(other.most for other in same)) for same in sizes for each in same]
    per_node = all(each.shape.processes_per_node == 1 for each in shown)
    title = f"Samples per {'node' if per_node else 'rank'} and label, epoch 1"
    return maps(found, across if 1 < across <= MAX_COLUMNS else MAX_COLUMNS, title)


def _map(shown: LabelMap, ranks: int, most: int) -> Map:
    """The map of the first ranks and labels, below the partition's name, sizes, coverage and skew."""
    noun, seed = shown.shape.rank_noun, "" if shown.seed is None else f", seed {shown.seed}"
    table = shown.partition_summary.labels
    totals, cut = np.maximum(table.sum(axis=1), 1), table[:ranks, :MOST_LABELS]
    names, labels = shown.row_names[: len(cut)], [*map(str, range(cut.shape[1]))]
    kept = [(f"{noun}s", *table.shape[:1], len(names)), ("labels", *table.shape[1:], len(labels))]
    notes = [f"The first {few} of {of} {what}." for what, of, few in kept if few < of]
    return Map(
        records=[
            {
                "row": names[rank],
                "column": labels[label],
                "amount": int(samples),
                "written": f"{samples}",
                "share": f"{samples / totals[rank]:.1%}",
            }
            for (rank, label), samples in np.ndenumerate(cut)
            if samples
        ],
        rows=names,
        columns=labels,
        most=most,
        token="map",
        tips={"row": noun, "column": "label", "written": "samples", "share": f"of all on the {noun}"},
        titles=(f"{noun}s" if shown.replica_ranks else noun, "label"),
        palest=PALEST,
        title=f"{shown.partitioner}, {shown.shape.label}{seed}",
        notes=[*describe(shown.partition_summary), *notes],
    )


def describe(summary: PartitionSummary) -> list[str]:
    """Sizes, coverage and overlap, and label divergence, a line each."""
    low, high = int(summary.sizes.min()), int(summary.sizes.max())
    sizes = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    if high - low > 1:
        sizes += f", mean {summary.sizes.mean():,.0f}"
    js, emd = summary.js_divergence, summary.earth_movers_distance
    skew = f"JS {formats.bits(fmean(js))}, max {formats.bits(max(js))}"
    if emd:
        skew += f"; EMD {formats.distance(fmean(emd))}, max {formats.distance(max(emd))}"
    spread = f"coverage {formats.percent(summary.coverage)}, overlap {formats.percent(summary.overlap)}"
    return [f"{sizes} samples each", spread, skew]
