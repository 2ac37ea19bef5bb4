"""Comparison: a sweep's files, read and set against each other; all that the report's pages show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.report.baselines import rows_of
from orchestrator.report.groups import Group, groups_of
from orchestrator.report.labels import Work
from orchestrator.report.rows import Row
from orchestrator.result import RunResult
from orchestrator.store import SweepPaths, SweepRecord, read_record, read_result


@dataclass(frozen=True)
class Comparison:
    """rows: the runs that have a result, in the order of the sweep file. pending: keys of the others."""

    record: SweepRecord
    rows: tuple[Row, ...]
    pending: tuple[str, ...]

    @cached_property
    def groups(self) -> list[Group]:
        return groups_of(self.rows)

    @property
    def works(self) -> list[Work]:
        """The different works of the sweep's training runs, in order."""
        return list(dict.fromkeys(group.work for group in self.groups if group.first.trains))

    def groups_with(self, work: Work) -> list[Group]:
        """The groups of this work that have something to compare: ok, and trained."""
        return [group for group in self.groups if group.ok and group.first.trains and group.work == work]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.ok]


def read_comparison(paths: SweepPaths) -> Comparison:
    """Read sweep.json and the results of its runs. Raises InputError, naming the file that is unfit."""
    record = read_record(paths)
    results = {key: read_result(paths.run(key).result) for key in record.keys}
    return compare(record, [(key, result) for key, result in results.items() if result is not None], paths)


def compare(
    record: SweepRecord, results: Sequence[tuple[str, RunResult]], paths: SweepPaths | None = None
) -> Comparison:
    """Set results, by key and in the order of the sweep, against each other. paths: only for messages."""
    parsed = []
    for key, result in results:
        try:
            parsed.append((key, result, result.run))
        except ValidationError as error:
            where = paths.run(key).result if paths else key
            raise InputError(f"{where}: not a run of this version; delete it to run again ({error})") from error
    done = {key for key, _ in results}
    return Comparison(record, tuple(rows_of(parsed)), tuple(key for key in record.keys if key not in done))
