"""Groups: the runs that are equal but for their seed, and how far they spread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from orchestrator.report.formats import JOIN
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.model.rows import SERIAL, Row

Metric = Callable[[Row], float | None]

# Fields of a spec that do not tell two groups apart.
_NOT_OF_THE_CELL = {"seed", "save_weights", "timeout_s"}


@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds of a group."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None if there is no value."""
        known = [value for value in values if value is not None]
        return cls(fmean(known), min(known), max(known), len(known)) if known else None

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges from lowest to highest seed meet: then the difference may be chance."""
        return self.low <= other.high and other.low <= self.high

    def range(self, write: Callable[[float], str]) -> str:
        """Lowest to highest seed, a shared unit once; just one value if they look the same."""
        low, high = write(self.low), write(self.high)
        if low == high:
            return low
        number, _, unit = low.partition(JOIN)
        if unit and high.endswith(JOIN + unit):
            low = number
        elif low.endswith("%") and high.endswith("%"):
            low = low.removesuffix("%")
        return f"{low} to {high}" if low[0] in "+−±" else f"{low}–{high}"


@dataclass(frozen=True)
class Group:
    """Runs of one cell of the sweep in one place: all equal but the seed. At least one row, ok or not."""

    rows: tuple[Row, ...]

    @property
    def ok_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.ok)

    @property
    def ok(self) -> bool:
        return bool(self.ok_rows)

    @property
    def repeated(self) -> bool:
        """Whether more than one seed came to an end, so that there is a spread to judge by."""
        return len({row.seed for row in self.ok_rows}) > 1

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def strategy(self) -> str:
        return self.first.strategy

    @property
    def strategy_label(self) -> str:
        return self.first.strategy_label

    @property
    def transport(self) -> str:
        return self.first.transport

    @property
    def partitioner_label(self) -> str:
        return self.first.partitioner_label

    @property
    def shape(self) -> ClusterShape:
        return self.first.shape

    @property
    def work(self) -> Workload:
        return self.first.work

    @property
    def serial(self) -> bool:
        return self.strategy == SERIAL

    @property
    def line(self) -> tuple[str, str, str, int]:
        """What one line of a figure shows: strategy, transport, partitioner (labels), ranks per node."""
        shape = self.shape
        return self.strategy_label, self.transport, self.partitioner_label, shape.processes_per_node

    @property
    def accuracy(self) -> Spread | None:
        """Test accuracy of the final weights over the seeds that are ok."""
        return self.over(lambda row: row.accuracy)

    def over(self, metric: Metric) -> Spread | None:
        """The metric over the seeds that are ok; None where it is absent."""
        return Spread.of(metric(row) for row in self.ok_rows)


def cell_of(row: Row) -> dict[str, Any]:
    """The fields of its spec that a run shares with all of its group, without defaults."""
    return {field: value for field, value in row.run.canonical().items() if field not in _NOT_OF_THE_CELL}


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """The groups, in the order of their first rows."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(json.dumps([cell_of(row), row.where], sort_keys=True), []).append(row)
    return [Group(tuple(members)) for members in cells.values()]
