"""What a reader can choose between, and how probably each is the right choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from zlib import crc32

import numpy as np

from orchestrator.report.metrics.estimates import error_of_difference, estimates
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, same_work
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.chances import (
    DRAWS,
    Chance,
    Draws,
    Tolerance,
    against_rivals,
    draw_means,
    for_speed,
)
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.statistics.moderated import Estimate
from orchestrator.report.topics.exchange import MEAN_GRADIENT
from orchestrator.report.topics.speed import timed

SURE, SURE_SEEDS = 0.95, 8  # from which a choice is stated
PROBABLE = 0.8  # from which it is called probable
POSSIBLE = 0.1  # below which a configuration is no longer named
MOST_REGRET = 3.0  # tolerances, beyond which a configuration is no toss-up with others
MOST_NAMED = 3  # in a headline
SAME = 1e-9  # of accuracies that are equal but for rounding
LEAST_SEEDS = 3  # of a configuration, in a sweep that adds seeds: its budget may end early


@dataclass(frozen=True)
class Candidate:
    """A configuration to choose."""

    group: Group
    speed: Chance  # to be the right choice where time counts, and accuracy must be kept
    regret: float  # the most that it may cost, in tolerances; none counts as a very small one
    counts_as: Group  # that of the same computation with the most seeds, whose accuracy stands for both

    @property
    def seeds(self) -> int:
        return len(self.group.ok_rows)

    @property
    def seeds_to_be_sure(self) -> int:
        return max(SURE_SEEDS, self.seeds + 4)

    @property
    def advice(self) -> str:
        """`Choose`, `Probably choose`, or to stay with serial."""
        verb = "stay with" if self.group.serial else "choose"
        return verb.capitalize() if self.sure else f"Probably {verb}"

    @property
    def sure(self) -> bool:
        """Whether the choice can be stated, rather than called probable."""
        return self.speed.probability >= SURE and self.seeds >= SURE_SEEDS


def candidates(view: WorkloadView) -> list[Candidate]:
    """The configurations on any number of nodes, and serial: the one that is most probably right first.

    Left out are those of which a run failed or did not learn, those without comparable times, and those
    with too few seeds. If the machine was busy, accuracy alone counts. If all have too few seeds, chances
    are 1 and 0: those of the means as measured.
    """
    groups = view.line_groups if view.disturbed else timed(view.line_groups)
    usable = _repeated(view, [group for group in groups if not why_not(view, group)])
    if not usable:
        return []
    draws = _Draws(view, usable)
    times = np.zeros((DRAWS, len(usable))) if view.disturbed else draws.means(Q.train_s, same_work)
    same = partial(_same_accuracy, view.tolerance)
    return _ranked(view, usable, times, draws.against_rivals(Q.accuracy, same), _standing_for(usable, same))


def at_target(view: WorkloadView) -> list[Candidate]:
    """Like `candidates`, those that reach the target accuracy with every seed: the time to it counts."""
    usable = _repeated(view, [group for group in view.line_groups if always_reaches(group)])
    if not usable:
        return []
    times = _Draws(view, usable).means(Q.time_to_target_s, lambda one, other: one is other)
    return _ranked(view, usable, times, [np.zeros_like(times)] * len(usable), usable)


def in_question(found: Sequence[Candidate], few: bool) -> list[Candidate]:
    """The choice; if none is probable, those that may be it and cost little if they are not.

    If all may cost more, it is the one that may cost least.

    Args:
        few: whether all have too few seeds.
    """
    if few or found[0].speed.probability >= PROBABLE:
        return [found[0]]
    possible = [each for each in found if each.speed.probability >= POSSIBLE] or [*found[:2]]
    close = [each for each in possible if each.regret <= MOST_REGRET]
    return close or [min(possible, key=lambda each: each.regret)]


def always_reaches(group: Group) -> bool:
    """Whether every seed reached the target, and the times compare."""
    reached, _ = seeds_at_target(group)
    return 0 < reached == len(group.rows) and group.first.times_compare


def _least_seeds(view: WorkloadView) -> int:
    return LEAST_SEEDS if view.staged else MIN_SEEDS


def _repeated(view: WorkloadView, usable: list[Group]) -> list[Group]:
    """The groups with enough seeds; all of them if none has."""
    return [group for group in usable if len(group.ok_rows) >= _least_seeds(view)] or usable


def _ranked(
    view: WorkloadView,
    usable: Sequence[Group],
    times: Draws,
    accuracies: Iterable[Draws],
    count_as: Sequence[Group],
) -> list[Candidate]:
    time, accuracy = max(view.tolerance.time, 1e-3), max(view.tolerance.accuracy, 1e-3)
    chances = for_speed(times, accuracies, view.tolerance)
    found = [
        Candidate(group, chance, max(chance.longer / time, chance.loses / accuracy), other)
        for group, chance, other in zip(usable, chances, count_as, strict=True)
    ]
    return sorted(found, key=lambda each: (-each.speed.probability, each.regret))


def why_not(view: WorkloadView, group: Group) -> str:
    """Why a configuration cannot be chosen; empty if it can."""
    if len(group.ok_rows) < len(group.rows):
        return "not every run finished"
    if not view.disturbed and not (group.first.times_compare and Q.train_s.sample(group)):
        return f"no {view.clock} time that compares"
    if not group.learned:
        return "not every run learned"
    if not Q.accuracy.sample(group):
        return "no accuracy"
    if group.shape.slower_nodes != view.shape.slower_nodes and not group.serial:
        return "other nodes are slower"
    return ""


def same_gradient(one: Group, other: Group) -> bool:
    """Whether both follow the mean gradient, by their names."""
    return {one.strategy_label, other.strategy_label} <= {*MEAN_GRADIENT}


def _same_accuracy(tolerance: Tolerance, one: Group, other: Group) -> bool:
    """Whether both are the same mathematics, by the seeds that both have.

    Whatever their names are, they are if their accuracies are equal. With equal names, or as ways to take
    the mean gradient, they are if accuracies are equal within the tolerance.
    """
    left, right = Q.accuracy.values(one), Q.accuracy.values(other)
    common = left.keys() & right.keys()
    if len(common) < max(1, min(len(left), len(right), LEAST_SEEDS)):
        return False
    apart = max(abs(left[seed] - right[seed]) for seed in common)
    if apart < SAME and len(common) >= LEAST_SEEDS:
        return True
    alike = (one.partitioner_label, one.shape) == (other.partitioner_label, other.shape)
    named_alike = one.strategy_label == other.strategy_label or same_gradient(one, other)
    return alike and named_alike and apart <= tolerance.accuracy


def _standing_for(groups: Sequence[Group], same: Callable[[Group, Group], bool]) -> list[Group]:
    """For each group, that with the most seeds of those that are the same."""
    first = [next(other for other in groups if same(other, group)) for group in groups]
    return [
        max(
            (group for group, of in zip(groups, first, strict=True) if of is one),
            key=lambda group: len(group.ok_rows),
        )
        for one in first
    ]


class _Draws:
    """Draws of the true means of these groups, the same in every report; with too few seeds, the means as
    measured.
    """

    def __init__(self, view: WorkloadView, groups: Sequence[Group]) -> None:
        self._groups = groups
        workloads = view.workload, view.workload.without_links
        self._errors = dict.fromkeys(workloads, error_of_difference(view))
        self._measured = max(len(group.ok_rows) for group in groups) < _least_seeds(view)
        self._seed = crc32(groups[0].first.key.encode())
        self._rng = np.random.default_rng(self._seed)

    def means(self, quantity: Quantity, same: Callable[[Group, Group], bool]) -> Draws:
        """Draws of the means on the scale of the comparison. Groups that are the same have one mean."""
        found, columns = self._estimates(quantity, same)
        return draw_means(found, self._rng)[:, columns]

    def against_rivals(self, quantity: Quantity, same: Callable[[Group, Group], bool]) -> Iterator[Draws]:
        """Like `means`, for each group those that it is held against."""
        found, columns = self._estimates(quantity, same)
        drawn = draw_means(found, self._rng)
        for at in columns:  # with equal draws for groups that are the same
            yield against_rivals(found, drawn, at, np.random.default_rng((self._seed, at)))[:, columns]

    def _estimates(
        self, quantity: Quantity, same: Callable[[Group, Group], bool]
    ) -> tuple[list[Estimate], list[int]]:
        """The distinct means, and which of them is that of each group."""
        standing = _standing_for(self._groups, same)
        distinct = {id(group): group for group in standing}
        if self._measured:
            found = [
                Estimate(fmean(quantity.sample(group).values()), 0.0, 1, 0.0) for group in distinct.values()
            ]
        else:
            found = estimates(quantity, [*distinct.values()], self._errors)
        return found, [[*distinct].index(id(group)) for group in standing]
