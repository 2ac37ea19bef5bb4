"""A quantity of runs: how to read it, write it, average it over seeds and compare it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean

from orchestrator.report import formats
from orchestrator.report.model.groups import FitOfGroup, Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.report.statistics.moderated import Sample
from orchestrator.report.statistics.spread import Spread

Bounds = tuple[float, float]

MOST_WRITTEN = 1000  # the ratio beyond which a bound says nothing more
MOST_LOG = 700.0  # of a float


@dataclass(frozen=True)
class Quantity:
    """A number that a run has: one entry for the CSV files, the tables, the figures and the findings.

    Attributes:
        write: formats a value.
        read: its value in an ok run.
        title: the title of its column in tables.
        ratio: whether values compare by their ratio and average geometrically, as times do; otherwise by
            their difference.
        lower_is_better: whether less is better, as for a time.
        resolution: the distance of neighbouring values in a run, if they are discrete.
        within: the smallest and the largest difference from a reference that are possible.
        interval: the 95 % interval of a configuration alone; None if it has none.
        timed: whether it is read from a clock, whose error no interval contains.
        by_seed: whether the seed determines it, so that means are on the seeds of all configurations.
        possible: bounds that no value leaves, on the scale of the comparison.
        of_means: its mean, from those of a configuration and of the serial one that it is compared with.
        of_failed: whether runs that are not ok have it, too. Others of their numbers compare with nothing.
        detail: what tables show beside the mean of a configuration, from the range over its seeds.
        only: the runs for which tables show it.
        missing: what tables show of a run that has no value.
        shown_for: whether the table of these runs shows it.
        name: its column in results.csv, and its name in findings.json.
    """

    write: Callable[[float], str]
    read: Metric
    title: str = ""
    ratio: bool = False
    lower_is_better: bool = True
    resolution: Callable[[Row], float] = lambda row: 0.0
    within: Callable[[Group], tuple[float, float]] = lambda reference: (-inf, inf)
    interval: Callable[[Group], Bounds | None] = lambda group: None
    timed: bool = False
    by_seed: bool = False
    possible: Bounds = (-inf, inf)
    of_means: Callable[[Group, Group], float] | None = None
    of_failed: bool = False
    detail: Callable[[Group, str], str] = lambda group, span: span
    only: Callable[[Row], bool] = lambda row: True
    missing: Callable[[Row], str] = lambda row: formats.ABSENT
    shown_for: Callable[[Sequence[Row]], bool] = lambda rows: True
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name of the attribute to which it is assigned."""
        object.__setattr__(self, "name", name)

    def of(self, row: Row) -> float | None:
        """Its value in a run; None if the run has none."""
        return self.read(row) if row.ok or self.of_failed else None

    def over(self, group: Group) -> Spread | None:
        """Its values over the group's ok runs, around the mean of `sample`; None if they have none."""
        spread = group.over(self.of, self.ratio)
        return spread and spread.shifted(self.shift(group), self.ratio)

    def means(self, groups: Iterable[Group], name: Callable[[Group], str]) -> dict[str, float]:
        """The means of the groups that have values, by their name."""
        return {name(group): spread.mean for group in groups if (spread := self.over(group))}

    def values(self, group: Group) -> Sample:
        """The values of the group's ok runs by seed, on the scale of the comparison."""
        known = {row.seed: value for row in group.ok_rows if (value := self.of(row)) is not None}
        if not self.ratio:
            return known
        return {seed: log(value) for seed, value in known.items() if value > 0}

    def sample(self, group: Group) -> Sample:
        """Those values, all shifted alike, so that their mean compares with those of other groups."""
        found, shift = self.values(group), self.shift(group)
        return {seed: value + shift for seed, value in found.items()} if shift else found

    def fit(self, group: Group) -> FitOfGroup | None:
        """The fit of its values to the seeds of all groups; None if they are not fitted."""
        return group.fit(self.name, self.values) if self.by_seed else None

    def shift(self, group: Group) -> float:
        """The mean that is printed − that over the group's own seeds, on the scale of the comparison."""
        own = self.values(group)
        if not own:
            return 0.0
        if self.of_means:
            serial = group.reference
            if serial is None or serial.seeds == group.seeds:
                return 0.0  # the mean over seeds is that of means
            mean = self.of_means(group, serial)
            return (log(mean) if self.ratio else mean) - fmean(own.values())
        return group.shift(self.name, self.values, self.possible) if self.by_seed else 0.0

    def mean(self, sample: Sample) -> float:
        """The mean of a sample, in the unit of the quantity."""
        return self.unscaled(fmean(sample.values()))

    def mean_of(self, group: Group) -> float:
        """The mean over the group's ok runs; it must have a value in one."""
        return self.mean(self.sample(group))

    def unscaled(self, value: float) -> float:
        """The ratio or difference for a value on the scale of the comparison."""
        return exp(max(-MOST_LOG, min(value, MOST_LOG))) if self.ratio else value

    def limited(self, bound: float, reference: Group) -> float:
        """A bound of the difference from a reference, on the comparison's scale, if it is possible."""
        least, most = self.within(reference)
        return max(least, min(bound, most))

    def write_difference(self, left: float, right: float) -> str:
        """The difference of two means: `+0.6 points`, `1.24 times as long`."""
        return (
            f"{formats.ratio(left / right)} times as long" if self.ratio else formats.points(left - right)
        )

    def write_bound(self, value: float) -> str:
        """A bound of the interval of a difference or ratio, without its unit."""
        if not self.ratio:
            return formats.points_bound(value)
        if not 1 / MOST_WRITTEN <= value <= MOST_WRITTEN:
            return f"over {MOST_WRITTEN}" if value > 1 else f"under 1/{MOST_WRITTEN}"
        return formats.ratio(value)
