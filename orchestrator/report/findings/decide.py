"""Decides what the rules of a report ask: which differences are shown, which are likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import log1p

from orchestrator.report.findings.compared import Compared, Level
from orchestrator.report.metrics.estimates import LEAST_SEEDS, Sampling, estimates
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.statistics.contrasts import MIN_SEEDS, Contrast
from orchestrator.report.statistics.families import Correction, Decision, benjamini_hochberg, is_extreme
from orchestrator.report.statistics.moderated import Estimate

FALSE_SHOWN = 0.05  # the share of reports on equals that may have a false claim that is called shown
# Of claims that are called likely, on average at most 5 % are false. With few seeds, tests with moderated
# variances are wrong a little more often than their level says.
LIKELY_LEVEL = 0.04

Name = tuple[str, int, int]  # of a comparison: its quantity and its groups, in one order
Ranked = tuple[str, frozenset[int]]  # its quantity and its groups

ZERO = Estimate(0.0, 0.0, 1, 1.0)  # what a difference is compared with


@dataclass(frozen=True)
class Question:
    """A pair to compare; the left group itself on the right to compare its value with 0.

    chosen_from: the value was chosen as the largest of so many.
    """

    quantity: Quantity
    left: Group
    right: Group
    chosen_from: int = 1

    @property
    def values(self) -> tuple[float, float]:
        """The means, in the unit of the quantity."""
        mean_of = self.quantity.mean_of
        return mean_of(self.left), 0.0 if self.right is self.left else mean_of(self.right)

    @property
    def name(self) -> Name:
        return name_of(self.quantity, self.left, self.right)

    @property
    def pool(self) -> frozenset[Workload]:
        """The workloads whose configurations complete the variances of this pair.

        A run on one node has no links, and is compared with those over each.
        """
        found = {self.left.workload, self.right.workload}
        return frozenset(found - {each.without_links for each in found if each.link})


@dataclass
class Asked:
    """What the rules of a report ask.

    Attributes:
        questions: each pair once.
        families: comparisons that the sweep asks, with their correction.
        rankings: groups of which one may be the best, another the worst.
    """

    questions: dict[Name, Question] = field(default_factory=dict)
    families: dict[object, tuple[Correction, dict[Name, None]]] = field(default_factory=dict)
    rankings: dict[Ranked, tuple[Quantity, Sequence[Group]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """What is decided.

    Attributes:
        compared: each pair, in the order of its question.
        lowest, highest: the lowest and highest group of each ranking; absent if undecided.
    """

    compared: Mapping[Name, Compared]
    lowest: Mapping[Ranked, Group]
    highest: Mapping[Ranked, Group]


def name_of(quantity: Quantity, one: Group, other: Group) -> Name:
    """The same whichever group is on the left."""
    first, second = sorted((id(one), id(other)))
    return quantity.name, first, second


def decide(
    asked: Asked, errors: Mapping[Workload, float], tolerance: Tolerance, sample: Sampling = Quantity.sample
) -> Answers:
    """Decide all comparisons of a report together.

    Args:
        errors: the relative error of a difference of cluster times, by workload.
        tolerance: differences that do not matter.
        sample: the values of a group by seed.
    """
    contrasts = _contrasts(asked, errors, sample)
    families = [
        (correction, known)
        for correction, names in asked.families.values()
        if (known := [name for name in names if name in contrasts])
    ]
    rankings = {
        ranked: against
        for ranked, (quantity, groups) in asked.rankings.items()
        if (against := _against_each(quantity, groups, asked, contrasts))
    }
    level = FALSE_SHOWN / max(1, len(families) + len(rankings))
    decisions = _decisions(asked, contrasts, families, level)
    return Answers(
        {
            name: _compared(question, tolerance, decisions.get(name), sample)
            for name, question in asked.questions.items()
        },
        _extremes(rankings, level, smallest=True),
        _extremes(rankings, level, smallest=False),
    )


def _decisions(
    asked: Asked,
    contrasts: Mapping[Name, Contrast],
    families: Sequence[tuple[Correction, Sequence[Name]]],
    level: float,
) -> dict[Name, tuple[Decision, Level, int]]:
    """The decision of each comparison, its level, and the number of those that it was corrected with.

    What the sweep asks is likely where it is decided with all other comparisons, and not by itself.
    """
    found: dict[Name, tuple[Decision, Level, int]] = {}
    for correction, names in families:
        corrected = correction([contrasts[name] for name in names], level)
        for name, decision in zip(names, corrected, strict=True):
            found.setdefault(name, (decision, "shown", len(names)))
    factors = [asked.questions[name].chosen_from for name in contrasts]
    explored = benjamini_hochberg([*contrasts.values()], LIKELY_LEVEL, factors)
    for name, decision in zip(contrasts, explored, strict=True):
        if name not in found or (decision.decided and not found[name][0].decided):
            found[name] = decision, "likely", len(contrasts)
    return found


def _against_each(
    quantity: Quantity, groups: Sequence[Group], asked: Asked, contrasts: Mapping[Name, Contrast]
) -> list[tuple[Group, list[Contrast]]]:
    """Each group, with every other one minus it; nothing if two of them cannot be compared."""
    if len(groups) < 2 or any(
        name_of(quantity, *pair) not in contrasts for pair in combinations(groups, 2)
    ):
        return []

    def difference(one: Group, other: Group) -> Contrast:
        name = name_of(quantity, one, other)
        return contrasts[name] if asked.questions[name].left is one else contrasts[name].swapped

    return [
        (group, [difference(other, group) for other in groups if other is not group]) for group in groups
    ]


def _extremes(
    rankings: Mapping[Ranked, Sequence[tuple[Group, Sequence[Contrast]]]], level: float, smallest: bool
) -> dict[Ranked, Group]:
    return {
        ranked: group
        for ranked, against in rankings.items()
        for group, differences in against
        if is_extreme(differences, level, smallest)
    }


def _contrasts(asked: Asked, errors: Mapping[Workload, float], sample: Sampling) -> dict[Name, Contrast]:
    """Left minus right of each pair that can be compared: with enough seeds, and not all equal."""
    pools: dict[tuple[str, frozenset[Workload]], dict[int, Estimate]] = {}
    found = {}
    for name, question in asked.questions.items():
        quantity, left, right = question.quantity, question.left, question.right
        if (
            _same(question, sample)
            or min(len(sample(quantity, each)) for each in (left, right)) < MIN_SEEDS
        ):
            continue
        key = quantity.name, question.pool
        if key not in pools:
            groups = [
                group
                for group in _asked_about(asked, quantity.name, question.pool)
                if len(sample(quantity, group)) >= LEAST_SEEDS
            ]
            pools[key] = dict(
                zip(map(id, groups), estimates(quantity, groups, errors, sample), strict=True)
            )
        other = ZERO if right is left else pools[key][id(right)]
        found[name] = Contrast(pools[key][id(left)], other)
    return found


def _asked_about(asked: Asked, quantity: str, workloads: frozenset[Workload]) -> list[Group]:
    """The configurations of workloads that are compared in a quantity; those on one node are in all."""
    without_links = {each.without_links for each in workloads}
    groups = {
        id(group): group
        for (name, *_), question in asked.questions.items()
        if name == quantity
        for group in (question.left, question.right)
        if group.workload in workloads or (group.shape.nodes == 1 and group.workload in without_links)
    }
    return [*groups.values()]


def _same(question: Question, sample: Sampling) -> bool:
    """Whether the values are equal in every seed."""
    one = sample(question.quantity, question.left)
    if question.right is question.left:
        return not any(one.values())
    return one == sample(question.quantity, question.right)


def _compared(
    question: Question, tolerance: Tolerance, decided: tuple[Decision, Level, int] | None, sample: Sampling
) -> Compared:
    quantity, left, right = question.quantity, question.left, question.right
    decision, level, together = decided or (None, "likely", 0)
    means = [quantity.mean(sample(quantity, group)) for group in (left, right)]
    return Compared(
        quantity,
        left,
        right,
        (means[0], 0.0 if right is left else means[1]),
        decision.contrast if decision else None,
        decision,
        _same(question, sample),
        level,
        _tolerated(quantity, tolerance),
        together,
    )


def _tolerated(quantity: Quantity, tolerance: Tolerance) -> float:
    """The tolerated difference on the scale of the comparison."""
    if quantity.ratio:
        return log1p(tolerance.time)
    return tolerance.accuracy if quantity in (Q.accuracy, Q.averaging_gain) else 0.0
