"""The command `partitions`: shows how partitioners divide a dataset, without training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np

from orchestrator.errors import InputError, data_error, output_error
from orchestrator.report import formats
from orchestrator.report.model.labels import component_label
from orchestrator.results.csv_text import csv_text
from orchestrator.results.store import check_output, write_atomic
from orchestrator.sweeps.expand import BlockFields, FieldValue, expand
from orchestrator.sweeps.imports import Imports, has_users
from orchestrator.sweeps.yaml import parse_yaml
from orchestrator.terminal import aligned
from trainer.components.messages import PartitionFigures
from trainer.core.registry import ImportedComponent
from trainer.data.base import DataError
from trainer.spec.checks import partitioner_error
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import PartitionSummary, partition_summary

# A partitioner that cannot divide the dataset is reported in its row instead of as an error, so the run is
# validated with a strategy that uses no partition.
_ANY_RUN = {"strategy": "fault_injection", "model": "mlp"}
_PARTITIONED = REGISTRIES["strategy"].parse("one_shot")


SUMMARY, LABELS, FIGURE = FILES = ("partitions.csv", "labels.csv", "labels.svg")  # that can be written
MOST_NODES = 16  # rows of a table of labels
_NONE = "·"  # no sample of a label, so that skew is easy to see
_HEADING = "partitioner"
# Group headings, each with the headings of its columns.
_GROUPS = (
    ("samples per node", ("min", "mean", "max")),
    ("cover-", ("age",)),
    ("over-", ("lap",)),
    ("JS, bits", ("mean", "max")),
    ("EMD, 0–2", ("mean", "max")),
    ("labels", ("held",)),
)
LEGEND = (
    "Coverage: share of the training set on any node; overlap: on several nodes. JS",
    "divergence and earth mover's distance (EMD) compare a node's labels with those",
    "of the whole set; labels held: number of labels on a node.",
)


@dataclass(frozen=True)
class PartitionPreview:
    """A run's partition in epoch 1, or the reason why there is none."""

    run: RunSpec
    summary: PartitionSummary | None
    reason: str = ""

    @property
    def label(self) -> str:
        """The partitioner, with the parameters that are not the default."""
        return component_label(self.run, "partitioner")


def runs_of(
    dataset: str, nodes: int, partitioners: Sequence[str], seed: int, imports: Imports
) -> list[RunSpec]:
    """One run per partitioner; all partitioners if none is named. Raises InputError.

    dataset, partitioners: a name or YAML with parameters, as in a sweep file. imports: finds users' ones.
    """
    fields = BlockFields("partitions", skip=[])
    for field, value in _ANY_RUN.items():
        fields.override(field, [value], "partitions")
    for name, given in (("dataset", dataset), ("nodes", nodes), ("seed", seed)):
        fields.option(name, given)
    named = [(text, f"--partitioner {text}") for text in partitioners]
    fields.fields["partitioner"] = [
        FieldValue(parse_yaml(text, option), option, extensible=False) for text, option in named
    ] or [FieldValue(name, name) for name in REGISTRIES["partitioner"].entries]
    runs = [run.model_copy(update={"strategy": _PARTITIONED}) for run in expand(fields, imports)]
    if nodes > (samples := runs[0].dataset.train_samples):
        raise InputError(
            f"--nodes {nodes}: {dataset} has {samples} training samples; allowed: 1 to {samples}"
        )
    return runs


def preview(runs: Sequence[RunSpec], data_dir: Path, imports: Imports) -> Iterator[PartitionPreview]:
    """Each run's partition. The dataset, equal in all runs, is downloaded if missing. Raises InputError.

    imports: runs users' components, in a process of their own.
    """
    dataset = runs[0].dataset
    try:
        if not isinstance(dataset, ImportedComponent):
            dataset.prepare(data_dir)
            data = dataset.load(data_dir)
    except DataError as error:
        raise data_error(data_dir, error) from error
    for run in runs:
        if reason := partitioner_error(run):
            yield PartitionPreview(run, None, reason)
            continue
        try:
            if has_users(run):
                summary = _summary(run, imports.figures("partition", run).partition)
            else:
                summary = partition_summary(run, data.train.labels, data.classes)
            yield PartitionPreview(run, summary)
        except (ValueError, DataError, InputError) as error:
            yield PartitionPreview(run, None, str(error))


def _summary(run: RunSpec, found: PartitionFigures | None) -> PartitionSummary:
    """The partition that the process with users' components has sent. Raises InputError."""
    rows, classes = run.num_replicas, run.dataset.class_count
    if (
        found is None
        or [len(row) for row in found.labels] != [classes] * rows
        or {len(found.js_divergence), len(found.earth_movers_distance)} != {rows}
    ):
        raise InputError(f"the answer holds no partition of {classes} labels over {rows} parts")
    js, emd = tuple(found.js_divergence), tuple(found.earth_movers_distance)
    return PartitionSummary(np.array(found.labels), found.coverage, found.overlap, js, emd)


def tables(previews: Sequence[PartitionPreview], width: int) -> str:
    """The command's output: a summary of all partitioners, then one table of labels for each."""
    blocks = [[heading(previews)], [*summary_lines(previews, width), "", *LEGEND]]
    blocks += [lines for item in previews if (lines := label_lines(item, width))]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def heading(previews: Sequence[PartitionPreview]) -> str:
    """`digits: 8 nodes, seed 0`."""
    run = previews[0].run
    epoch = ", epoch 1 where reshuffled" if any(item.run.partitioner.reshuffle for item in previews) else ""
    return (
        f"{component_label(run, 'dataset')}: {run.dataset.train_samples:,} training samples on "
        f"{run.size_label}, seed {run.seed}{epoch}"
    )


def summary_lines(previews: Sequence[PartitionPreview], width: int) -> list[str]:
    """A row for each partitioner, or the reason why it has no partition."""
    rows = [_cells(item.summary) for item in previews if item.summary]
    blocks = [_block(*group, [row[at] for row in rows]) for at, group in enumerate(_GROUPS)]
    needed = sum(len(block[0]) for block in blocks)
    longest = max(len(_HEADING), *(len(item.label) for item in previews))
    gap = 2 if longest + needed + 2 * len(blocks) <= width else 1
    room = width - needed - gap * len(blocks)
    # A name that does not fit is put on a line of its own.
    first = max(2, min(longest, room))

    def line(block_line: int) -> str:
        return "".join(" " * gap + block[block_line] for block in blocks)

    def named(label: str, rest: str) -> list[str]:
        return (
            [f"{label:{first}}{rest}"] if len(label) <= first else [*wrap(label, width), " " * first + rest]
        )

    lines = [" " * first + line(0), *named(_HEADING, line(1))]
    at = 2
    for item in previews:
        if item.summary:
            lines += named(item.label, line(at))
            at += 1
        else:
            reason = wrap(f"not possible: {item.reason}", max(20, width - first - gap))
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
    lines = aligned([below, *rows])
    widest = max(len(top), len(lines[0]))
    return [f"{line:>{widest}}" for line in (top, *lines)]


def label_lines(item: PartitionPreview, width: int) -> list[str]:
    """Samples per node and label, as many as fit; the last line lists the rest."""
    if item.summary is None or item.run.dataset.class_count < 2:
        return []
    counts = item.summary.labels
    nodes, labels = counts.shape
    first = max(len("node"), len(str(nodes - 1)))
    cell = 1 + max(len(f"{counts.max():,}"), len(str(labels - 1)))
    shown_labels, shown_nodes = min(labels, (width - first) // cell), min(nodes, MOST_NODES)
    lines = [f"{'node':>{first}}" + "".join(f"{label:{cell}}" for label in range(shown_labels))]
    for node in range(shown_nodes):
        cells = (f"{count:,}" if count else _NONE for count in counts[node, :shown_labels])
        lines.append(f"{node:{first}}" + "".join(f"{text:>{cell}}" for text in cells))
    left_out = [
        f"{noun} {shown}" if shown == number - 1 else f"{noun}s {shown} to {number - 1}"
        for noun, shown, number in (("node", shown_nodes, nodes), ("label", shown_labels, labels))
        if shown < number
    ]
    if left_out:
        lines.append(f"not shown: {formats.listed(left_out)}; --out DIR writes all")
    return [*wrap(f"{item.label}: samples per node and label", width), *lines]


def check_files(directory: Path) -> None:
    """Raise InputError, or StorageError if the disk is full, unless the files can be written."""
    for name in FILES:
        check_output(directory / name, "--out")


def write_files(previews: Sequence[PartitionPreview], directory: Path) -> list[Path]:
    """Write partitions.csv, labels.csv and, if any partition exists, labels.svg.

    Raises InputError, or StorageError if the disk is full.
    """
    texts = {SUMMARY: summary_csv(previews), LABELS: labels_csv(previews)}
    if any(item.summary for item in previews):
        texts[FIGURE] = _figure(previews)
    try:
        for name, text in texts.items():
            write_atomic(directory / name, text)
    except OSError as error:
        raise output_error(directory, error) from error
    return [directory / name for name in texts]


def summary_csv(previews: Sequence[PartitionPreview]) -> str:
    """One line per partitioner. Columns shared with results.csv have the same names."""
    lines = []
    for item in previews:
        line: dict[str, Any] = {
            "partitioner": item.label,
            "dataset": component_label(item.run, "dataset"),
            "nodes": item.run.nodes,
            "seed": item.run.seed,
            "status": "ok" if item.summary else "failed",
            "cause": item.reason or None,
        }
        lines.append(line | (_figures(item.summary) if item.summary else {}))
    return csv_text([*dict.fromkeys(name for line in lines for name in line)], lines)


def _figures(seen: PartitionSummary) -> dict[str, Any]:
    js, emd = seen.js_divergence, seen.earth_movers_distance
    return {
        "samples_per_node_min": int(seen.sizes.min()),
        "samples_per_node_mean": float(seen.sizes.mean()),
        "samples_per_node_max": int(seen.sizes.max()),
        "coverage": seen.coverage,
        "overlap": seen.overlap,
        "js_divergence_mean_bits": fmean(js),
        "js_divergence_max_bits": max(js),
        "earth_movers_distance_mean": fmean(emd),
        "earth_movers_distance_max": max(emd),
        "labels_per_node_min": int(seen.classes_held.min()),
        "labels_per_node_max": int(seen.classes_held.max()),
    }


def labels_csv(previews: Sequence[PartitionPreview]) -> str:
    """One line per partitioner, node and label."""
    lines = [
        {"partitioner": item.label, "node": node, "label": label, "samples": int(samples)}
        for item in previews
        if item.summary
        for node, row in enumerate(item.summary.labels)
        for label, samples in enumerate(row)
    ]
    return csv_text(["partitioner", "node", "label", "samples"], lines)


def _figure(previews: Sequence[PartitionPreview]) -> str:
    # Imported here: the tables do not need it.
    from orchestrator.report.figures.label_maps import LabelMap, label_maps
    from orchestrator.report.figures.vega import svg_file, svg_of
    from orchestrator.report.model.labels import ClusterShape

    maps = [
        LabelMap(item.label, ClusterShape.of(item.run), item.summary) for item in previews if item.summary
    ]
    chart = label_maps(maps)
    return svg_file(svg_of(chart.without_heading), chart.heading)
