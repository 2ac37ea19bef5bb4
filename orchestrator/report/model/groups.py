"""Groups: the runs of one configuration, which differ only in their seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.report.model.labels import LR_SCHEDULE_FIELDS, ClusterShape, Workload
from orchestrator.report.model.rows import SERIAL, Clock, Row
from orchestrator.report.statistics.spread import Spread

Metric = Callable[[Row], float | None]


@dataclass(frozen=True)
class Group:
    """The runs of one configuration and location, differing only in seed. At least one row, ok or not.

    dropped: why it got fewer seeds than others; empty if it did not.
    """

    rows: tuple[Row, ...]
    dropped: str = ""

    def on(self, clock: Clock) -> Group:
        """The runs on a clock."""
        return Group(tuple(row.on(clock) for row in self.rows), self.dropped)

    @cached_property
    def ok_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.ok)

    @property
    def ok(self) -> bool:
        return bool(self.ok_rows)

    @property
    def repeated(self) -> bool:
        """Whether more than one seed finished, so that there is a range over seeds."""
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
    def name(self) -> str:
        return self.first.name

    @cached_property
    def series(self) -> str:
        """A line without its partitioner: `all_reduce · mpi`, `ddp · gloo · 2 ranks per node`."""
        return " · ".join(filter(None, [self.first.series, self.shape.per_node]))

    @property
    def transport(self) -> str:
        return self.first.transport

    @property
    def partitioner_label(self) -> str:
        return self.first.partitioner_label

    @cached_property
    def shape(self) -> ClusterShape:
        return self.first.shape

    @property
    def workload(self) -> Workload:
        return self.first.workload

    @property
    def serial(self) -> bool:
        return self.strategy == SERIAL

    @cached_property
    def line(self) -> tuple[str, str, str, int]:
        """A line's identity in figures: strategy, transport and partitioner labels, ranks per node."""
        shape = self.shape
        return self.strategy_label, self.transport, self.partitioner_label, shape.processes_per_node

    @cached_property
    def work(self) -> str:
        """What a step computes and where, as text: equal for groups whose times differ only by chance.

        Initial weights and the learning rate change accuracy, but no operation of a step.
        """
        return self.first.configuration("lr", *LR_SCHEDULE_FIELDS, "strategy.init")

    @property
    def accuracy(self) -> Spread | None:
        """Test accuracy of the final weights over the ok seeds."""
        return self.over(lambda row: row.accuracy)

    def over(self, metric: Metric, geometric: bool = False) -> Spread | None:
        """The metric over the ok seeds; None if it is absent. geometric: its mean, as for ratios."""
        return Spread.of((metric(row) for row in self.ok_rows), geometric)


def same_work(one: Group, other: Group) -> bool:
    """Whether both do the same work, so that their times differ only by chance."""
    return one.work == other.work


def one_per_work(groups: Sequence[Group]) -> list[Group]:
    """The first of the groups that do the same work, in the order given."""
    first: dict[str, Group] = {}
    for group in groups:
        first.setdefault(group.work, group)
    return [*first.values()]


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """The groups, in the order of their first rows."""
    configurations: dict[str, list[Row]] = {}
    for row in rows:
        configurations.setdefault(row.configuration(), []).append(row)
    return [Group(tuple(same)) for same in configurations.values()]
