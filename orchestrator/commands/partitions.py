"""The command `partitions`: what partitioners make of a dataset, drawn as runs do, without training."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestrator.errors import InputError
from orchestrator.report.model.labels import component_label
from orchestrator.results.store import write_atomic
from orchestrator.sweeps.expand import BlockFields, FieldValue, expand
from orchestrator.sweeps.yaml import parse_yaml
from trainer.data.base import DataError
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import PartitionSummary, partition_summary

# A run that nothing is wrong with but what is asked for. What a partitioner cannot do is no mistake here
# but an answer, in its row: so the run is checked with a strategy that splits nothing.
_ANY_RUN = {"strategy": "fault_injection", "model": "mlp"}
_SPLITTING = REGISTRIES["strategy"].parse("one_shot")


@dataclass(frozen=True)
class Drawn:
    """A run's split in epoch 1, or why there is none."""

    run: RunSpec
    partition_summary: PartitionSummary | None
    reason: str = ""

    @property
    def label(self) -> str:
        """The partitioner, with the parameters that are not the default."""
        return component_label(self.run, "partitioner")


def runs_of(dataset: str, nodes: int, partitioners: Sequence[str], seed: int) -> list[RunSpec]:
    """One run for each partitioner, all of them where none is named. Raises InputError.

    dataset, partitioners: a name or YAML with parameters, as in a sweep file.
    """
    sheet = BlockFields("partitions", skip=[])
    for field, value in _ANY_RUN.items():
        sheet.override(field, [value], "partitions")
    option = f"--dataset {dataset}"
    sheet.override("dataset", [parse_yaml(dataset, option)], option)
    sheet.override("nodes", [nodes], f"--nodes {nodes}")
    sheet.override("seed", [seed], f"--seed {seed}")
    named = [(text, f"--partitioner {text}") for text in partitioners]
    sheet.fields["partitioner"] = [
        FieldValue(parse_yaml(text, option), option, extensible=False) for text, option in named
    ] or [FieldValue(name, name) for name in REGISTRIES["partitioner"].entries]
    runs = [run.model_copy(update={"strategy": _SPLITTING}) for run in expand(sheet)]
    if nodes > (samples := runs[0].dataset.train_samples):
        raise InputError(f"--nodes {nodes}: more than the {samples} training samples of {dataset}")
    return runs


def draw(runs: Sequence[RunSpec], data_dir: Path) -> Iterator[Drawn]:
    """Each run's split. The dataset, the same in all runs, is fetched if absent. Raises InputError."""
    dataset = runs[0].dataset
    try:
        dataset.prepare(data_dir)
        data = dataset.load(data_dir)
    except DataError as error:
        raise InputError(str(error)) from error
    for run in runs:
        try:
            yield Drawn(run, partition_summary(run, data.train.labels, data.classes))
        except (ValueError, DataError) as error:
            yield Drawn(run, None, str(error))


def write_files(drawn: Sequence[Drawn], directory: Path) -> list[Path]:
    """Write partitions.csv, labels.csv and, if anything could be split, labels.svg. Raises InputError."""
    texts = {"partitions.csv": summary_csv(drawn), "labels.csv": labels_csv(drawn)}
    if any(item.partition_summary for item in drawn):
        texts["labels.svg"] = _figure(drawn)
    try:
        for name, text in texts.items():
            write_atomic(directory / name, text)
    except OSError as error:
        raise InputError(f"--out {directory}: cannot be written ({error.strerror})") from error
    return [directory / name for name in texts]


def summary_csv(drawn: Sequence[Drawn]) -> str:
    """A line per partitioner; columns that results.csv has, too, are called the same there."""
    lines = []
    for item in drawn:
        line: dict[str, Any] = {
            "partitioner": item.label,
            "dataset": component_label(item.run, "dataset"),
            "nodes": item.run.nodes,
            "seed": item.run.seed,
            "status": "ok" if item.partition_summary else "failed",
            "cause": item.reason or None,
        }
        lines.append(line | (_figures(item.partition_summary) if item.partition_summary else {}))
    return _csv(
        lines,
        [
            *lines[0],
            *next((_figures(item.partition_summary) for item in drawn if item.partition_summary), {}),
        ],
    )


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


def labels_csv(drawn: Sequence[Drawn]) -> str:
    """A line per partitioner, node and label."""
    lines = [
        {"partitioner": item.label, "node": node, "label": label, "samples": int(samples)}
        for item in drawn
        if item.partition_summary
        for node, row in enumerate(item.partition_summary.labels)
        for label, samples in enumerate(row)
    ]
    return _csv(lines, ["partitioner", "node", "label", "samples"])


def _csv(lines: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(columns)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _figure(drawn: Sequence[Drawn]) -> str:
    # Imported here: matplotlib takes longest of all to load, and the tables do without.
    from matplotlib import rc_context

    from orchestrator.report.figures.maps import LabelMap, label_maps
    from orchestrator.report.figures.style import RC
    from orchestrator.report.figures.svg import to_svg
    from orchestrator.report.model.labels import ClusterShape

    maps = [
        LabelMap(item.label, ClusterShape.of(item.run), item.partition_summary)
        for item in drawn
        if item.partition_summary
    ]
    with rc_context(RC):  # type: ignore[arg-type]  # its stub wants every key as a literal
        return to_svg(label_maps(maps), "labels")
