"""What is exported of a sweep: the numbers of the report's CSV files, and the fields of each run's spec."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from orchestrator import __version__
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.model.labels import as_written
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.render.csv_tables import Value, epoch_lines, result_lines, summary_lines
from orchestrator.results.store import SweepPaths
from trainer.spec.run_spec import RunSpec

Line = Mapping[str, Value]
Parameter = str | int | float | bool
Number = int | float

PENDING = "pending"
# Columns of epochs.csv that say which epoch of which run a line has; the others are curves.
EPOCH_IDENTITY = ("key", "strategy", "nodes", "seed", "epoch")


@dataclass(frozen=True)
class ExportedEpoch:
    """An epoch of a run.

    number: its number, from 1. time_s: when it ended, in seconds since 1970, if evaluation had taken no
    time. values: the numbers of epochs.csv.
    """

    number: int
    time_s: float
    values: Mapping[str, Number]


@dataclass(frozen=True)
class ExportedRun:
    """A run, whether it is ok or not.

    started_s, ended_s: seconds since 1970; 0 if its result is not usable.
    parameters: the fields of its spec that have a value, defaults included. Those of a component are
        written as with `--set`: `strategy`, `strategy.local_steps`.
    tags: `sweep`, `key`, `seed`, `status`, `cause`, and what results.csv says in words.
    metrics: the numbers of results.csv, without those that are parameters.
    """

    key: str
    started_s: float
    ended_s: float
    parameters: Mapping[str, Parameter]
    tags: Mapping[str, str]
    metrics: Mapping[str, Number]
    epochs: tuple[ExportedEpoch, ...]

    @property
    def ok(self) -> bool:
        return self.tags["status"] == "ok"

    @property
    def label(self) -> str:
        """The key, with the status of a run that is not ok."""
        return self.key if self.ok else f"{self.key} ({self.tags['status']})"

    @cached_property
    def digest(self) -> str:
        """The digest of everything in it, which changes with the run or the report."""
        text = json.dumps([__version__, asdict(self)], sort_keys=True)
        return sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class ExportedSweep:
    """The results of a sweep.

    runs: those with a result, usable or not, in the order of the sweep. configurations: the lines of
    summary.csv with their columns. pending: the number of runs without a result.
    """

    name: str
    runs: tuple[ExportedRun, ...]
    columns: Sequence[str]
    configurations: Sequence[Line]
    pending: int


def read_contents(paths: SweepPaths) -> ExportedSweep:
    """Read the results of a directory. Raises InputError if it has none, or its sweep.json is damaged."""
    comparison = read_comparison(paths)
    rows = {row.key: row for row in comparison.rows}
    curves: dict[Value, list[Line]] = {}
    for line in epoch_lines(comparison)[1]:
        curves.setdefault(line["key"], []).append(line)
    lines = [*result_lines(comparison)[1]]
    columns, configurations = summary_lines(comparison)
    name = comparison.record.name
    return ExportedSweep(
        name,
        tuple(
            _run(name, line, rows.get(str(line["key"])), curves.get(line["key"], []))
            for line in lines
            if line["status"] != PENDING
        ),
        columns,
        [*configurations],
        sum(line["status"] == PENDING for line in lines),
    )


def _run(sweep: str, line: Line, row: Row | None, curves: Sequence[Line]) -> ExportedRun:
    """The run of a line of results.csv. row: None if its result is not usable."""
    measured = {name: value for name, value in line.items() if name not in RunSpec.model_fields}
    words = {name: as_written(value) for name, value in measured.items() if _in_words(value)}
    started_s = row.result.started_at if row else 0.0
    return ExportedRun(
        key=str(line["key"]),
        started_s=started_s,
        ended_s=started_s + (row.result.wall_s if row else 0.0),
        parameters=dict(parameters_of(row.run)) if row else {},
        tags={"sweep": sweep, **({"seed": str(row.seed)} if row else {}), **words},
        metrics=_numbers(measured),
        epochs=tuple(_epoch(started_s + (Q.startup_s.of(row) or 0.0), curve) for curve in curves)
        if row
        else (),
    )


def _epoch(training_s: float, line: Line) -> ExportedEpoch:
    """The epoch of a line of epochs.csv. training_s: when training started."""
    numbers = _numbers(line)
    values = {name: value for name, value in numbers.items() if name not in EPOCH_IDENTITY}
    return ExportedEpoch(int(numbers["epoch"]), training_s + numbers["train_s"], values)


def _numbers(line: Line) -> dict[str, Number]:
    return {
        name: value
        for name, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _in_words(value: Value) -> bool:
    """Whether it is a text or a truth value. A cell is empty if its value is None or an empty text."""
    return isinstance(value, bool) or (isinstance(value, str) and value != "")


def parameters_of(run: RunSpec) -> Iterator[tuple[str, Parameter]]:
    """The fields of a spec that have a value, in the order of the spec."""
    for field, value in run.model_dump(mode="json").items():
        if field != "partitioner" or run.strategy.uses_partition:
            yield from _flat(field, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Parameter]]:
    """A value by its dotted name; a component's name under that of its field."""
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _flat(name if inner == "name" else f"{name}.{inner}", item)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flat(f"{name}.{number}", item)
    elif isinstance(value, list):
        if value:
            yield name, as_written(value)
    elif value not in (None, ""):
        yield name, value
