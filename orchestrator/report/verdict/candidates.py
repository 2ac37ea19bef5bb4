"""What a reader can choose between, and how probably each is the right choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from zlib import crc32

import numpy as np

from orchestrator.report.findings.speed import MEAN_GRADIENT, timed
from orchestrator.report.metrics.clock import error_of_difference
from orchestrator.report.metrics.estimates import estimates
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, same_work
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities import ACCURACY, TRAIN_S
from orchestrator.report.quantities.learning import learned
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.chances import (
    Chance,
    Draws,
    Tolerance,
    draw_means,
    for_accuracy,
    for_speed,
)
from orchestrator.report.statistics.contrasts import MIN_SEEDS

SURE, SURE_SEEDS = 0.95, 8  # from which a choice is stated
MOST_NAMED = 3  # in a headline
LEAST_SEEDS = 3  # of a configuration that is left out while a sweep adds seeds


@dataclass(frozen=True)
class Candidate:
    """A configuration to choose.

    Attributes:
        speed: its chance to be the right choice where time counts, and accuracy must be kept.
        accuracy: the probability that it is as accurate as the best, within the tolerance.
        regret: the most that it may cost, in tolerances.
    """

    group: Group
    speed: Chance
    accuracy: float
    regret: float

    @property
    def seeds(self) -> int:
        return len(self.group.ok_rows)

    @property
    def sure(self) -> bool:
        """Whether the choice can be stated, rather than called probable."""
        return self.speed.probability >= SURE and self.seeds >= SURE_SEEDS


def candidates(view: WorkloadView) -> list[Candidate]:
    """The configurations on any number of nodes, and serial: the one that is most probably right first.

    Left out are those of which a run failed or did not learn, those without comparable times, and those
    with too few seeds. If all have too few, chances are 1 and 0: those of the means as measured.
    """
    least_seeds = LEAST_SEEDS if view.staged else MIN_SEEDS
    usable = [group for group in timed(view.line_groups) if not why_not(view, group)]
    usable = [group for group in usable if len(group.ok_rows) >= least_seeds] or usable
    if not usable:
        return []
    rng = np.random.default_rng(crc32(usable[0].first.key.encode()))  # the same report again
    errors = {view.workload: error_of_difference(view)}
    measured = max(len(group.ok_rows) for group in usable) < least_seeds
    tolerance, draws = view.tolerance, None if measured else rng
    times = _means(TRAIN_S, usable, same_work, draws, errors)
    accuracies = _means(ACCURACY, usable, partial(_same_accuracy, tolerance), draws, errors)
    found = [
        Candidate(group, speed, accuracy, _regret(speed, tolerance))
        for group, speed, accuracy in zip(
            usable,
            for_speed(times, accuracies, tolerance),
            for_accuracy(accuracies, tolerance),
            strict=True,
        )
    ]
    return sorted(found, key=lambda each: (-each.speed.probability, each.regret))


def why_not(view: WorkloadView, group: Group) -> str:
    """Why a configuration cannot be chosen; empty if it can."""
    if len(group.ok_rows) < len(group.rows):
        return "not every run finished"
    if not (group.first.times_compare and TRAIN_S.sample(group)):
        return f"no {view.clock} time that compares"
    if any(learned(row) is False for row in group.ok_rows):
        return "not every run learned"
    if not ACCURACY.sample(group):
        return "no accuracy"
    if group.shape.slower_nodes != view.shape.slower_nodes and not group.serial:
        return "other nodes are slower"
    return ""


def _regret(chance: Chance, tolerance: Tolerance) -> float:
    """In tolerances; a difference of which none is tolerated counts as many."""
    return max(chance.longer / max(tolerance.time, 1e-3), chance.loses / max(tolerance.accuracy, 1e-3))


def _same_accuracy(tolerance: Tolerance, one: Group, other: Group) -> bool:
    """Whether both are the same mathematics: equal in every seed that both have, within the tolerance."""
    labels = {one.strategy_label, other.strategy_label}
    if (one.partitioner_label, one.shape) != (other.partitioner_label, other.shape) or not (
        len(labels) == 1 or labels <= {*MEAN_GRADIENT}
    ):
        return False
    left, right = ACCURACY.sample(one), ACCURACY.sample(other)
    common = left.keys() & right.keys()
    return len(common) >= min(len(left), len(right), LEAST_SEEDS) and all(
        abs(left[seed] - right[seed]) <= tolerance.accuracy for seed in common
    )


def _means(
    quantity: Quantity,
    groups: Sequence[Group],
    same: Callable[[Group, Group], bool],
    rng: np.random.Generator | None,
    errors: Mapping[Workload, float],
) -> Draws:
    """Draws of the true means, or the means as measured. Groups that are the same have one mean."""
    first = [next(at for at, other in enumerate(groups) if same(other, group)) for group in groups]
    distinct = sorted(set(first))
    measured = [
        max(
            (group for group, like in zip(groups, first, strict=True) if like == at),
            key=lambda group: len(group.ok_rows),
        )
        for at in distinct
    ]
    if rng is None:
        drawn = np.array([[fmean(quantity.sample(group).values()) for group in measured]])
    else:
        drawn = draw_means(estimates(quantity, measured, errors), rng)
    return drawn[:, [distinct.index(at) for at in first]]
