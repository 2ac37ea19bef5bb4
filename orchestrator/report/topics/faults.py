"""Faults: what they cost, by the runs that differ in nothing but their faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, Metric, grouped
from orchestrator.report.model.labels import SURVIVAL
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.topic import Findings, Topic

NO_COUNTERPART = "no run without faults to compare with"
NO_COMMON_SEED = "no seed finished both with and without faults"


@dataclass(frozen=True)
class FaultCost:
    """A configuration with faults, and the same without.

    undisturbed: None if the sweep has no such configuration.
    """

    group: Group
    undisturbed: Group | None

    @property
    def pairs(self) -> list[tuple[Row, Row]]:
        """The ok runs with and without faults, by seed."""
        rows = self.undisturbed.ok_rows if self.undisturbed else ()
        without = {row.seed: row for row in rows}
        return [(row, without[row.seed]) for row in self.group.ok_rows if row.seed in without]

    @property
    def missing(self) -> str | None:
        """Why there are no numbers; None if there are."""
        if not self.group.ok:
            return f"{self.group.first.status}: {self.group.first.cause}"
        if self.undisturbed is None:
            return NO_COUNTERPART
        if not self.undisturbed.ok:
            first = self.undisturbed.first
            return f"the run without faults {first.status}: {first.cause}"
        return None if self.pairs else NO_COMMON_SEED

    def with_faults(self, metric: Metric) -> Spread | None:
        """The metric of the runs with faults, over the seeds that finished both."""
        return Spread.of(metric(row) for row, _ in self.pairs)

    def without_faults(self, metric: Metric) -> Spread | None:
        """The metric of the runs without faults, over the same seeds."""
        return Spread.of(metric(row) for _, row in self.pairs)

    def difference(self, metric: Metric) -> Spread | None:
        """The metric with faults minus without, by seed."""
        values = [(metric(row), metric(other)) for row, other in self.pairs]
        return Spread.of(None if one is None or two is None else one - two for one, two in values)


def fault_costs(comparison: Comparison) -> list[FaultCost]:
    """One for each configuration with faults, in the order of the sweep."""
    plain = grouped([group for group in comparison.groups if not group.first.run.faults], _key)
    faulty = [group for group in comparison.groups if group.first.run.faults]
    return [FaultCost(group, _most_similar(group, plain.get(_key(group), []))) for group in faulty]


def _key(group: Group) -> str:
    """The configuration and location of a group, without its faults and how it survives them."""
    return group.first.configuration("faults", *SURVIVAL)


def _most_similar(group: Group, others: Sequence[Group]) -> Group | None:
    """The group with most of SURVIVAL in common, ok before failed; the first of equals."""

    def common(other: Group) -> tuple[bool, int]:
        mine, theirs = group.first.run, other.first.run
        return other.ok, sum(getattr(mine, name) == getattr(theirs, name) for name in SURVIVAL)

    return max(others, key=common, default=None)


def fault_cost(comparison: Comparison) -> Findings:
    """Time, steps, samples and accuracy that faults cost a configuration."""
    costs = [cost for cost in fault_costs(comparison) if cost.missing is None]
    pairs = [(cost.group, cost.undisturbed) for cost in costs if cost.undisturbed]
    answers = [*(yield [Ask.of(each, pairs, of_sweep=True) for each in (Q.elapsed_s, Q.accuracy)])]
    for cost in costs:
        compared = [each for answer in answers for each in answer.compared if each.left is cost.group]
        repeated, lost = cost.with_faults(Q.repeated_steps.of), cost.with_faults(Q.samples_lost.of)
        data = {
            "name": f"{cost.group.name} on {cost.group.shape.label}",
            "faults": cost.group.first.faults_label,
            "repeated_steps": repeated and (repeated.low, repeated.high),
            "samples_lost": lost and (lost.low, lost.high),
            "compared": compared_data(compared),
        }
        if compared:
            yield Finding("fault_cost", tuple(row for pair in cost.pairs for row in pair), data)


TOPIC = Topic(sweep_rules=(fault_cost,))
