"""Groups: the runs of one configuration, which differ only in their seed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from statistics import fmean
from typing import TypeVar

from orchestrator.report.model.labels import LR_SCHEDULE_FIELDS, ClusterShape, Workload
from orchestrator.report.model.learned import learned
from orchestrator.report.model.rows import SERIAL, Clock, Row
from orchestrator.report.statistics.common_seeds import MIN_SEEDS, SeedFit
from orchestrator.report.statistics.moderated import Sample
from orchestrator.report.statistics.spread import Spread

Item = TypeVar("Item")
Shared = TypeVar("Shared", bound=Hashable)
Metric = Callable[[Row], float | None]
Values = Callable[["Group"], Sample]
FitOfGroup = tuple[SeedFit, str]  # and the name of the group in it


@dataclass(frozen=True)
class Group:
    """The runs of one configuration and location, differing only in seed. At least one row, ok or not.

    block: the groups whose seeds are the same draws; None if it stands alone. dropped: why a sweep added
    fewer seeds to it than to others; empty if it did not.
    """

    rows: tuple[Row, ...]
    block: Block | None = field(default=None, compare=False, repr=False)
    dropped: str = ""

    def on(self, clock: Clock) -> Group:
        """The runs on a clock."""
        return replace(self, rows=tuple(row.on(clock) for row in self.rows))

    @cached_property
    def ok_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.ok)

    @property
    def ok(self) -> bool:
        return bool(self.ok_rows)

    @cached_property
    def learned(self) -> bool:
        """Whether no run is known not to have learned."""
        return not any(learned(row) is False for row in self.ok_rows)

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds that finished."""
        return frozenset(row.seed for row in self.ok_rows)

    @property
    def repeated(self) -> bool:
        """Whether more than one seed finished, so that there is a range over seeds."""
        return len(self.seeds) > 1

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
        spread = self.over(lambda row: row.accuracy)
        return spread and spread.shifted(self.shift("accuracy", _accuracies, (0, 1)), ratio=False)

    @cached_property
    def reference(self) -> Group | None:
        """The serial configuration that all its runs are compared with, on their clock."""
        keys = {serial.key for row in self.ok_rows for serial in row.serial}
        found = [group for group in self.block.groups if keys & group.keys] if self.block else []
        return found[0].on(self.first.clock) if len(found) == 1 else None

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(row.key for row in self.rows)

    def fit(self, name: str, values: Values) -> FitOfGroup | None:
        """The fit of what a seed determines; None if this group is not in it. See `Block.fit`."""
        fit = self.block.fit(name, values) if self.block else None
        return (fit, self.first.key) if fit and fit.has(self.first.key) else None

    def shift(self, name: str, values: Values, possible: tuple[float, float] = (-inf, inf)) -> float:
        """What is added to the mean over its own seeds, to have that on all. possible: bounds of it."""
        fit = self.fit(name, values)
        if fit is None or not (shift := fit[0].shift(fit[1])):
            return 0.0
        mean, (least, most) = fmean(values(self).values()), possible
        return max(least - mean, min(shift, most - mean))

    def over(self, metric: Metric, geometric: bool = False) -> Spread | None:
        """The metric over the ok seeds; None if it is absent. geometric: its mean, as for ratios."""
        return Spread.of((metric(row) for row in self.ok_rows), geometric)


def _accuracies(group: Group) -> Sample:
    return {row.seed: row.accuracy for row in group.ok_rows if row.accuracy is not None}


@dataclass(frozen=True, eq=False)
class Block:
    """The groups of one training: a seed is the same draw in all of them. See `Workload.training`."""

    groups: tuple[Group, ...]
    _fits: dict[str, SeedFit] = field(default_factory=dict)

    def fit(self, name: str, values: Values) -> SeedFit:
        """The fit of what a seed determines to configurations and seeds.

        What did not learn is not in it, nor what has so few seeds that nothing is concluded from them.

        Args:
            name: identifies what is read.
            values: of a group, by seed.
        """
        if name not in self._fits:
            samples = {group.first.key: values(group) for group in self.groups if group.learned}
            enough: dict[Hashable, Sample] = {
                key: sample for key, sample in samples.items() if len(sample) >= MIN_SEEDS
            }
            self._fits[name] = SeedFit(enough)
        return self._fits[name]


def in_blocks(groups: Sequence[Group], dropped: Mapping[str, str]) -> list[Group]:
    """The groups, each in its block.

    Args:
        dropped: why a sweep stopped adding seeds, by the key of a group's first run.
    """
    members: dict[Workload, list[Group]] = {}
    most: dict[Workload, int] = {}
    for group in groups:
        members.setdefault(group.workload.training, []).append(group)
        most[group.workload] = max(most.get(group.workload, 0), len(group.rows))
    blocks = {training: Block(tuple(of)) for training, of in members.items()}
    fewer = [len(group.rows) < most[group.workload] for group in groups]
    why = [next((dropped[key] for key in group.keys if key in dropped), "") for group in groups]
    return [
        replace(group, block=blocks[group.workload.training], dropped=reason if less else "")
        for group, less, reason in zip(groups, fewer, why, strict=True)
    ]


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
    return [Group(tuple(same)) for same in grouped(rows, Row.configuration).values()]


def grouped(items: Iterable[Item], key: Callable[[Item], Shared]) -> dict[Shared, list[Item]]:
    """The items by what some of them share, both in the order given."""
    found: dict[Shared, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
