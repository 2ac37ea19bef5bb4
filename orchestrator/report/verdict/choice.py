"""Which configurations remain to choose from, once the findings' claims have excluded the others."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from orchestrator.report.findings.speed import timed, timed_serial
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.decisions import Claimed, Decisions

TOLERATED = 0.01  # of accuracy; a smaller difference does not outweigh time


@dataclass(frozen=True)
class Choice:
    """What may be chosen among the configurations on several nodes.

    usable: whose runs all finished, learned, and have comparable times; the fastest first. best: those of
    them that claims do not exclude; several if that is undecided. serial: if its time is comparable.
    """

    claimed: Claimed
    usable: Sequence[Group]
    best: Sequence[Group]
    serial: Group | None

    @property
    def fastest(self) -> Group:
        """The one that was measured fastest."""
        return self.best[0]

    @property
    def most_accurate(self) -> Group:
        """The one that was measured most accurate."""
        return max(self.best, key=ACCURACY.mean_of)

    @property
    def stay(self) -> bool:
        """Whether serial is shown to be the better choice than each of the best."""
        serial = self.serial
        return serial is not None and all(displaces(serial, group, self.claimed) for group in self.best)

    @property
    def gains_nothing(self) -> bool:
        """Whether none of the best configurations is shown to be better than serial in a quantity."""
        serial = self.serial
        return serial is not None and not any(
            self.claimed.faster(group, serial) or self.claimed.more_accurate(group, serial)
            for group in self.best
        )


def choose(view: WorkloadView, decisions: Decisions, unlearned: AbstractSet[str]) -> Choice:
    """Exclude what is claimed to be worse.

    First, whatever is claimed to lose more than TOLERATED accuracy against another configuration or serial,
    unless serial excludes all. Then, from the fastest on, what one of those kept displaces.

    Args:
        unlearned: keys of the runs that have not learned.
    """
    claimed = Claimed(decisions, [group for group in view.ranked_candidates if TRAIN_S.sample(group)])
    usable = [
        group
        for group in timed(view.ranked_candidates)
        if ACCURACY.sample(group)
        and len(group.ok_rows) == len(group.rows)
        and not unlearned & {row.key for row in group.rows}
    ]
    # Without enough seeds, nothing can be claimed of a configuration.
    usable = [group for group in usable if len(group.ok_rows) >= MIN_SEEDS] or usable
    serial = timed_serial(view, usable) if view.serial and ACCURACY.sample(view.serial) else None
    return Choice(claimed, usable, _best(usable, serial, claimed), serial)


def _best(usable: Sequence[Group], serial: Group | None, claimed: Claimed) -> list[Group]:
    accurate = _accurate(usable, usable, claimed)
    if serial is None:
        return _undisplaced(accurate, claimed)
    best = _undisplaced(_accurate(accurate, [serial], claimed), claimed)
    worthwhile = [group for group in best if not displaces(serial, group, claimed)]
    faster = [group for group in usable if claimed.faster(group, serial)]
    if worthwhile or (best and not faster):
        return worthwhile or best
    # Serial is better than all that keep its accuracy: the alternative is what is faster at a loss.
    return _undisplaced(_accurate(faster, faster, claimed) or accurate, claimed)


def _accurate(groups: Sequence[Group], others: Sequence[Group], claimed: Claimed) -> list[Group]:
    """The groups that lose accuracy against none of the others."""
    return [group for group in groups if not any(loses(group, other, claimed) for other in others)]


def _undisplaced(groups: Sequence[Group], claimed: Claimed) -> list[Group]:
    """The groups that no other of them displaces, the fastest first."""
    kept: list[Group] = []
    for group in sorted(groups, key=lambda group: (claimed.time_of(group), -ACCURACY.mean_of(group))):
        if not any(displaces(other, group, claimed) for other in kept):
            kept.append(group)
    return kept


def loses(group: Group, other: Group, claimed: Claimed) -> bool:
    """Whether a group is claimed to be less accurate than another, and was by more than is tolerated."""
    found = claimed.accuracy(group, other)
    return found is not None and found.verdict == "less" and -found.difference > TOLERATED


def displaces(one: Group, other: Group, claimed: Claimed) -> bool:
    """Whether `one` is claimed to be faster or more accurate, and was measured no worse in the other.

    A tolerated loss of accuracy is no worse.
    """
    lost = ACCURACY.mean_of(other) - ACCURACY.mean_of(one)
    if claimed.faster(one, other) and lost <= TOLERATED:
        return True
    return claimed.more_accurate(one, other) and claimed.time_of(one) <= claimed.time_of(other)
