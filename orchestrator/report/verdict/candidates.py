"""What a reader can choose between, and how probably each is the right choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean
from zlib import crc32

import numpy as np

from orchestrator.report.findings.speed import timed
from orchestrator.report.metrics.clock import error_of_difference
from orchestrator.report.metrics.estimates import estimates
from orchestrator.report.metrics.learning import learned
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S, Quantity
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, same_work
from orchestrator.report.model.labels import Workload
from orchestrator.report.statistics.chances import (
    Chance,
    Draws,
    Tolerance,
    draw_means,
    for_accuracy,
    for_speed,
)
from orchestrator.report.statistics.contrasts import MIN_SEEDS

TOLERATED = Tolerance()
MOST_NAMED = 3  # in a headline


@dataclass(frozen=True)
class Candidate:
    """A configuration to choose.

    Attributes:
        speed: its chance to be the right choice where time counts, and accuracy must be kept.
        accuracy: the probability that it is as accurate as the best, within the tolerance.
    """

    group: Group
    speed: Chance
    accuracy: float

    @property
    def regret(self) -> float:
        """The most that it may cost, in tolerances."""
        return max(self.speed.longer / TOLERATED.time, self.speed.loses / TOLERATED.accuracy)

    @property
    def seeds(self) -> int:
        return len(self.group.ok_rows)


def candidates(view: WorkloadView, unlearned: AbstractSet[str]) -> list[Candidate]:
    """The configurations on any number of nodes, and serial: the one that is most probably right first.

    Left out are those of which a run failed or did not learn, those without comparable times, and those
    with fewer than MIN_SEEDS seeds. If all have fewer, chances are 1 and 0: those of the means as measured.

    Args:
        unlearned: keys of the runs that have not learned.
    """
    usable = [group for group in timed(view.line_groups) if not why_not(view, group, unlearned)]
    usable = [group for group in usable if len(group.ok_rows) >= MIN_SEEDS] or usable
    if not usable:
        return []
    rng = np.random.default_rng(crc32(usable[0].first.key.encode()))  # the same report again
    errors = {view.workload: error_of_difference(view)}
    times = _means(TRAIN_S, usable, same_work, rng, errors)
    accuracies = _means(ACCURACY, usable, _same_accuracy, rng, errors)
    found = [
        Candidate(*each)
        for each in zip(
            usable,
            for_speed(times, accuracies, TOLERATED),
            for_accuracy(accuracies, TOLERATED),
            strict=True,
        )
    ]
    return sorted(found, key=lambda each: (-each.speed.probability, each.regret))


def why_not(view: WorkloadView, group: Group, unlearned: AbstractSet[str]) -> str:
    """Why a configuration cannot be chosen; empty if it can."""
    if len(group.ok_rows) < len(group.rows):
        return "not every run finished"
    if not (group.first.times_compare and TRAIN_S.sample(group)):
        return f"no {view.clock} time that compares"
    if unlearned & {row.key for row in group.rows} or any(learned(row) is False for row in group.ok_rows):
        return "not every run learned"
    if not ACCURACY.sample(group):
        return "no accuracy"
    if group.shape.slower_nodes != view.shape.slower_nodes and not group.serial:
        return "other nodes are slower"
    return ""


def _same_accuracy(one: Group, other: Group) -> bool:
    """Whether both are one algorithm over two transports: equal in every seed, within the tolerance."""
    if (one.strategy_label, one.partitioner_label, one.shape) != (
        other.strategy_label,
        other.partitioner_label,
        other.shape,
    ):
        return False
    left, right = ACCURACY.sample(one), ACCURACY.sample(other)
    return left.keys() == right.keys() and all(
        abs(left[seed] - right[seed]) <= TOLERATED.accuracy for seed in left
    )


def _means(
    quantity: Quantity,
    groups: Sequence[Group],
    same: Callable[[Group, Group], bool],
    rng: np.random.Generator,
    errors: Mapping[Workload, float],
) -> Draws:
    """Draws of the true means. Groups that are the same in this quantity have one mean."""
    first = [next(at for at, other in enumerate(groups) if same(other, group)) for group in groups]
    distinct = sorted(set(first))
    measured = [groups[at] for at in distinct]
    if max(len(quantity.sample(group)) for group in measured) < MIN_SEEDS:
        drawn = np.array([[fmean(quantity.sample(group).values()) for group in measured]])
    else:
        drawn = draw_means(estimates(quantity, measured, errors), rng)
    return drawn[:, [distinct.index(at) for at in first]]
