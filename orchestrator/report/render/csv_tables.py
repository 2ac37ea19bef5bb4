"""The CSV files beside a report, for spreadsheets and data frames.

columns.csv, the data dictionary, has their columns in order. Programs read the files: add columns at the
end, and do not rename them. A column whose meaning is empty there is a field of the sweep file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.speedups import speedup_intervals, time_interval
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.labels import component_label
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.statistics.contrasts import MIN_SEEDS as COMPARED_SEEDS
from orchestrator.report.statistics.intervals import MIN_SEEDS
from orchestrator.report.topics import asked_by
from orchestrator.results.limits import written
from orchestrator.results.records import EpochPoint
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Value = str | int | float | bool | None
Lines = tuple[Sequence[str], Iterator[dict[str, Value]]]  # the columns of a file, and its lines
OfRun = Callable[[Row], Value]


class Entry(NamedTuple):
    """A column of a CSV file.

    unit: the unit of its numbers; empty for text, counts, and values without a unit. empty: the lines for
    which it has no value, beside those for which nothing is known or measured at all.
    """

    file: str
    column: str
    unit: str
    meaning: str
    empty: str


def _dictionary() -> dict[str, list[Entry]]:
    """The columns of each file."""
    found: dict[str, list[Entry]] = {}
    text = (Path(__file__).parent / "columns.csv").read_text(encoding="utf-8")
    for entry in (Entry(**line) for line in csv.DictReader(text.splitlines())):
        meaning = entry.meaning or RunSpec.model_fields[entry.column].description or ""
        empty = entry.empty.format(seeds=MIN_SEEDS, compared_seeds=COMPARED_SEEDS)
        found.setdefault(entry.file, []).append(entry._replace(meaning=meaning, empty=empty))
    return found


DICTIONARY = _dictionary()
SUMMARY, RESULTS, EPOCHS = (tuple(entry.column for entry in entries) for entries in DICTIONARY.values())
# Times are on the wall clock, whichever clock is the report's, up to this column.
CLOCK = RESULTS.index("clock")


def column_lines() -> Lines:
    """The data dictionary, for readers without the documentation."""
    return Entry._fields, (entry._asdict() for entries in DICTIONARY.values() for entry in entries)


def result_lines(comparison: Comparison) -> Lines:
    """results.csv: one line per run. Failed and unusable ones have a cause, pending ones only a key."""
    rows = {row.key: row for row in comparison.rows}
    values = {name: _of_run(name) for name in RESULTS}

    def line(key: str) -> dict[str, Value]:
        if (row := rows.get(key)) is None:
            why = comparison.unusable.get(key)
            return {"key": key, "status": "unusable" if why else "pending", "cause": why}
        return {name: of(row.wall if at < CLOCK else row) for at, (name, of) in enumerate(values.items())}

    return RESULTS, map(line, comparison.record.keys)


def summary_lines(comparison: Comparison, claims: Claims | None = None) -> Lines:
    """summary.csv: one line per configuration with a result, in the order of the sweep.

    claims: the decided comparisons, if they are known already.
    """
    return SUMMARY, _summary(comparison, claims or asked_by(comparison).decided())


def epoch_lines(comparison: Comparison) -> Lines:
    """epochs.csv: one line per ok run and epoch, in the order of the sweep, on the wall clock."""
    return EPOCHS, (line for row in comparison.rows if row.ok for line in _epochs(row.wall))


def _of_run(name: str) -> OfRun:
    """What a column of results.csv holds: a quantity, a field of the sweep file, or something else."""
    if name in _OF_RUN:
        return _OF_RUN[name]
    if name in QUANTITIES:
        return QUANTITIES[name].of
    if name in REGISTRIES:
        return lambda row: component_label(row.run, name)
    if (replayed := QUANTITIES.get(name.removeprefix("cluster_"))) is not None:
        return lambda row: replayed.of(row.cluster) if row.cluster else None
    return lambda row: getattr(row.run, name)


_OF_RUN: dict[str, OfRun] = {
    **{name: attrgetter(name) for name in ("key", "status", "cause", "clock", "log", "replicas_equal")},
    "partitioner": lambda row: row.partitioner_label,
    "runtime": lambda row: row.result.runtime,
    "cores": lambda row: written(row.result.cores),
    "baseline": lambda row: " ".join(each.key for each in row.serial) or None,
    "no_speedup_reason": lambda row: row.no_speedup,
    "certificate_verified": lambda row: row.verified,
    "flags": lambda row: "; ".join(row.result.flags),
    "ranks": lambda row: row.run.world_size,
    "image": lambda row: row.result.environment.get("image"),
    "link": lambda row: row.link_label or None,
    "split_points": lambda row: " ".join(row.split_points) or None,
    "node_speed": lambda row: (
        " ".join(f"{speed:g}" for speed in row.run.node_speeds or ()) if row.run.slower_nodes else None
    ),
    "target_reached": target_reached,
    "vary": lambda row: " ".join(row.run.vary),
    "faults": lambda row: row.faults_label or None,
    "byzantine": lambda row: row.run.byzantine_label or None,
    "order": lambda row: row.result.order,
}


def _summary(comparison: Comparison, claims: Claims) -> Iterator[dict[str, Value]]:
    speedup_interval = speedup_intervals(comparison, claims)
    for group in comparison.groups:
        ok, memory = len(group.ok_rows), Q.peak_memory_mib.over(group)
        line: dict[str, Value] = {
            "workload": group.workload.label,
            "strategy": group.strategy_label,
            "transport": group.transport,
            "partitioner": group.partitioner_label,
            "nodes": group.shape.nodes,
            "ranks": group.shape.ranks,
            "seeds": ok,
            "clock": group.first.clock,
            "peak_memory_mib": memory.high if memory else None,
            "state": "ok" if ok == len(group.rows) else "partly" if ok else "failed",
        }
        for name, quantity, interval in (
            ("accuracy", Q.accuracy, Q.accuracy.interval(group)),
            ("time_s", Q.train_s, time_interval(Q.train_s, group, claims)),
            ("speedup", Q.speedup, speedup_interval(group)),
            ("bytes_sent_per_rank", Q.bytes_sent_per_rank, None),
        ):
            spread = quantity.over(group)
            line[name] = spread.mean if spread else None
            line[f"{name}_low"], line[f"{name}_high"] = interval or (None, None)
        yield {name: line[name] for name in SUMMARY}


def _epochs(row: Row) -> Iterator[dict[str, Value]]:
    """The epochs of a run on the row's clock, in order."""
    points: dict[int, list[EpochPoint]] = {}
    for point in row.result.epochs:
        points.setdefault(point.epoch, []).append(point)
    samples: dict[int, int] = {}
    for part in row.result.certificate.parts if row.result.certificate else ():
        samples[part.epoch] = samples.get(part.epoch, 0) + part.samples
    before_s = 0.0
    for number, of in sorted(points.items()):
        end_s = max(point.train_s for point in of)
        losses = [point.loss for point in of if point.loss is not None]
        trained, took_s = samples.get(number, 0), end_s - before_s
        yield {
            "key": row.key,
            "strategy": component_label(row.run, "strategy"),
            "nodes": row.run.nodes,
            "seed": row.seed,
            "epoch": number,
            "train_s": end_s,
            "lr": of[0].lr,
            "loss": fmean(losses) if losses else None,
            "accuracy": fmean(point.accuracy for point in of),
            "test_loss": fmean(point.test_loss for point in of),
            "samples_per_s": trained / took_s if trained and took_s > 0 else None,
        }
        before_s = end_s
