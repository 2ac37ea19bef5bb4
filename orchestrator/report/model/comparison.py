"""Comparison: a sweep's files, read and set against each other; all that the report's pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.report.model.baselines import rows_of
from orchestrator.report.model.groups import Group, groups_of
from orchestrator.report.model.labels import ClusterShape, Workload
from orchestrator.report.model.rows import Row
from orchestrator.report.model.split_points import one_of_each
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, SweepRecord, read_record, read_result

REFERENCE_PARTITIONER = "random_partition"  # what others are held against, where it was tried

MOST_IN_LINES = 3  # partitioners that figures tell apart by line style


@dataclass(frozen=True)
class WorkloadView:
    """One work's groups that came to something: ok, and trained.

    shape: the nodes, and ranks in each, at which strategies are set against each other. one_of_several:
    whether the sweep has other works, so that this one must be named.
    """

    work: Workload
    groups: list[Group]
    shape: ClusterShape
    one_of_several: bool

    @property
    def serial(self) -> Group | None:
        return next((group for group in self.groups if group.serial), None)

    @property
    def rivals(self) -> list[Group]:
        """The groups of this shape, serial apart; of those that are cut in different places, one."""
        shown = one_of_each(self.groups)
        return [group for group in shown if group.shape == self.shape and not group.serial]

    @property
    def partitioners(self) -> list[str]:
        """Labels of the partitioners that the rivals were tried with, the reference first."""
        labels = dict.fromkeys(group.partitioner_label for group in self.rivals if group.partitioner_label)
        return sorted(labels, key=lambda label: label != REFERENCE_PARTITIONER)

    @property
    def usual(self) -> list[Group]:
        """The rivals with the reference partitioner, or without any: what strategies are compared on."""
        return self._with_reference(self.rivals)

    @property
    def in_lines(self) -> list[Group]:
        """The groups that a figure with a line for each has room for: of many partitioners, one's."""
        shown = one_of_each(self.groups)
        return shown if len(self.partitioners) <= MOST_IN_LINES else self._with_reference(shown)

    def _with_reference(self, groups: list[Group]) -> list[Group]:
        """Those of `groups` with the reference partitioner, or without any."""
        shown = ("", *self.partitioners[:1])
        return [group for group in groups if group.partitioner_label in shown]

    def name(self, group: Group) -> str:
        """`all_reduce over mpi`; with the partitioner where that was tried with several."""
        if group.serial:
            return group.strategy_label
        return f"{group.strategy_label} over {group.transport}{self.partitioner(group)}"

    def partitioner(self, group: Group) -> str:
        """` with random_sampling`, or nothing where the strategy was not tried with several."""
        tried = {other.partitioner_label for other in self.groups if other.line[:2] == group.line[:2]}
        return f" with {group.partitioner_label}" if len(tried) > 1 else ""


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
    def works(self) -> list[Workload]:
        """The different works of the sweep's training runs, in order."""
        return list(dict.fromkeys(group.work for group in self.groups if group.first.trains))

    def scene(self, work: Workload) -> WorkloadView:
        """What findings and figures of this work look at."""
        planned = [group for group in self.groups if group.first.trains and group.work == work]
        return WorkloadView(
            work, [group for group in planned if group.ok], _busiest(planned), len(self.works) > 1
        )

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.ok]


def _busiest(planned: Sequence[Group]) -> ClusterShape:
    """The shape with most groups, of equal ones the largest; only shapes where one is ok."""
    planned = one_of_each(planned)
    ok = {group.shape for group in planned if group.ok and not group.serial}
    size = Counter(group.shape for group in planned if group.shape in ok and not group.serial)
    return max(size, key=lambda shape: (size[shape], shape.ranks, shape.nodes), default=ClusterShape(1))


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
            raise InputError(
                f"{where}: not a run of this version; delete it to run again ({error})"
            ) from error
    done = {key for key, _ in results}
    return Comparison(record, tuple(rows_of(parsed)), tuple(key for key in record.keys if key not in done))
