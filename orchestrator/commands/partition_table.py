"""Splits as text for a terminal: one row per partitioner, and who holds how many samples of which label."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import wrap

from orchestrator.commands.partitions import Drawn
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label
from trainer.training.partition import PartitionSummary

MOST_NODES = 16  # rows of a table of labels
_NONE = "·"  # for no sample of a label: skew is seen at a glance
_HEADING = "partitioner"
# Headings over headings, with as many cells in each row as the lower ones have words.
_GROUPS = (
    ("samples per node", ("min", "mean", "max")),
    ("cover-", ("age",)),
    ("over-", ("lap",)),
    ("JS, bits", ("mean", "max")),
    ("EMD, 0–2", ("mean", "max")),
    ("labels", ("held",)),
)
LEGEND = (
    "On a node, JS divergence and earth mover's distance (EMD) of its labels from the",
    "whole set's, and how many of the labels it holds. Overlap: on several nodes.",
)


def heading(drawn: Sequence[Drawn]) -> str:
    """`digits: 8 nodes, seed 0`."""
    run = drawn[0].run
    epoch = ", epoch 1 where reshuffled" if any(item.run.partitioner.reshuffle for item in drawn) else ""
    return (
        f"{component_label(run, 'dataset')}: {run.dataset.train_samples:,} training samples on "
        f"{run.size_label}, seed {run.seed}{epoch}"
    )


def summary_lines(drawn: Sequence[Drawn], width: int) -> list[str]:
    """A row for each partitioner; one that cannot split says why."""
    rows = [_cells(item.partition_summary) for item in drawn if item.partition_summary]
    blocks = [_block(*group, [row[at] for row in rows]) for at, group in enumerate(_GROUPS)]
    needed = sum(len(block[0]) for block in blocks)
    longest = max(len(_HEADING), *(len(item.label) for item in drawn))
    gap = 2 if longest + needed + 2 * len(blocks) <= width else 1
    room = width - needed - gap * len(blocks)
    # A name that does not fit stands above its row.
    first = max(2, min(longest, room))

    def line(block_line: int) -> str:
        return "".join(" " * gap + block[block_line] for block in blocks)

    def named(label: str, rest: str) -> list[str]:
        return (
            [f"{label:{first}}{rest}"] if len(label) <= first else [*wrap(label, width), " " * first + rest]
        )

    lines = [" " * first + line(0), *named(_HEADING, line(1))]
    at = 2
    for item in drawn:
        if item.partition_summary:
            lines += named(item.label, line(at))
            at += 1
        else:
            reason = wrap(f"cannot split: {item.reason}", max(20, width - first - gap))
            head, *more = [" " * gap + text for text in reason]
            lines += [*named(item.label, head), *(" " * first + text for text in more)]
    return lines


def _cells(seen: PartitionSummary) -> list[list[str]]:
    js, emd, held = seen.js_divergence, seen.earth_movers_distance, seen.classes_held
    sizes = (float(seen.sizes.min()), float(seen.sizes.mean()), float(seen.sizes.max()))
    return [
        [f"{size:,.0f}" for size in sizes],
        [formats.percent(seen.coverage)],
        [formats.percent(seen.overlap)],
        [formats.bits(fmean(js)), formats.bits(max(js))],
        [formats.distance(fmean(emd)), formats.distance(max(emd))],
        [f"{held.min()}" if held.min() == held.max() else f"{held.min()}–{held.max()}"],
    ]


def _block(top: str, below: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under a common heading, all lines equally long."""
    widths = [max(map(len, column)) for column in zip(below, *rows, strict=True)]
    lines = [
        " ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (below, *rows)
    ]
    widest = max(len(top), len(lines[0]))
    return [f"{line:>{widest}}" for line in (top, *lines)]


def label_lines(item: Drawn, width: int) -> list[str]:
    """Samples per node and label, as many of both as there is room for; what is left out is said."""
    if item.partition_summary is None:
        return []
    counts = item.partition_summary.labels
    nodes, labels = counts.shape
    first = max(len("node"), len(str(nodes - 1)))
    cell = 1 + max(len(f"{counts.max():,}"), len(str(labels - 1)))
    shown_labels, shown_nodes = min(labels, (width - first) // cell), min(nodes, MOST_NODES)
    lines = [f"{'node':>{first}}" + "".join(f"{label:{cell}}" for label in range(shown_labels))]
    for node in range(shown_nodes):
        cells = (f"{count:,}" if count else _NONE for count in counts[node, :shown_labels])
        lines.append(f"{node:{first}}" + "".join(f"{text:>{cell}}" for text in cells))
    left_out = [
        f"{noun} {shown} to {number - 1}"
        for noun, shown, number in (("nodes", shown_nodes, nodes), ("labels", shown_labels, labels))
        if shown < number
    ]
    if left_out:
        lines.append(f"left out: {formats.listed(left_out)}; --out DIR writes all")
    return [*wrap(f"{item.label}: samples per node and label", width), *lines]
