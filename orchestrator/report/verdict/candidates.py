"""What a reader can choose between, and how probably each is the right choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean
from zlib import crc32

import numpy as np

from orchestrator.report.findings.speed import timed
from orchestrator.report.metrics.clock import least_claimed
from orchestrator.report.metrics.learning import learned
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S, Quantity
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, same_work
from orchestrator.report.statistics.chances import (
    Chance,
    Draws,
    Tolerance,
    draw_means,
    for_accuracy,
    for_speed,
)
from orchestrator.report.statistics.contrasts import Sample, pairing_helps
from orchestrator.report.statistics.moderated import moderated

TOLERATED = Tolerance()
MIN_SEEDS = 5  # to choose; with fewer, the error of a variance is as large as the variance
MOST_NAMED = 3  # in a headline
# By how much the time of a configuration differs if a sweep is repeated minutes later on a quiet machine.
BETWEEN_SESSIONS = 0.027


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
    clock = least_claimed(view) if view.clock == "cluster" else 0.0  # its error in a difference
    times = _means(TRAIN_S, usable, same_work, rng, hypot(BETWEEN_SESSIONS, clock / sqrt(2)))
    accuracies = _means(ACCURACY, usable, _same_accuracy, rng)
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
    between_sessions: float = 0.0,
) -> Draws:
    """Draws of the true means. Groups that are the same in this quantity have one mean."""
    first = [next(at for at, other in enumerate(groups) if same(other, group)) for group in groups]
    distinct = sorted(set(first))
    samples = _without_seed_effect([quantity.sample(groups[at]) for at in distinct])
    if max(map(len, samples)) < MIN_SEEDS:
        drawn = np.array([[fmean(sample.values()) for sample in samples]])
    else:
        resolution = quantity.resolution(groups[0].first)
        drawn = draw_means(moderated(samples, resolution), rng, between_sessions)
    return drawn[:, [distinct.index(at) for at in first]]


def _without_seed_effect(samples: list[Sample]) -> list[Sample]:
    """The samples without what a seed adds to all of them alike, if it does.

    Differences within a seed are then more certain than the spread over seeds suggests.
    """
    if not pairing_helps(samples):
        return samples
    of_seed = {seed: fmean(sample[seed] for sample in samples) for seed in samples[0]}
    overall = fmean(of_seed.values())
    # What is left of each seed is too small by the share that was its own part of the mean.
    scale = sqrt(len(samples) / (len(samples) - 1))
    freed: list[Sample] = []
    for sample in samples:
        mean = fmean(sample.values())
        left = {seed: value - mean - of_seed[seed] + overall for seed, value in sample.items()}
        freed.append({seed: mean + scale * residual for seed, residual in left.items()})
    return freed
