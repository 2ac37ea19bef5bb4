"""Comparisons that the rules of a report ask for, decided together, and the answers to the rules.

What a report asks in any case is *shown* if it is decided: comparisons with one reference, as with serial,
which of several is the best, and questions of the sweep. All of these together have a probability of at
most 5 % of a false claim. What is decided only among all comparisons is *likely*: of those claims, on
average at most 5 % are false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import inf, log1p, sqrt
from typing import Any, Literal

from orchestrator.report.findings.sentences import remark, written
from orchestrator.report.metrics.estimates import LEAST_SEEDS, estimates
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.statistics.contrasts import (
    MIN_SEEDS,
    Contrast,
    can_be_decided,
    critical_t,
    seeds_to_decide,
)
from orchestrator.report.statistics.families import (
    Correction,
    Decision,
    benjamini_hochberg,
    dunnett,
    holm,
    is_extreme,
)
from orchestrator.report.statistics.moderated import Estimate
from orchestrator.report.statistics.spread import MIN_SEEDS as SPREAD_SEEDS

FALSE_SHOWN = 0.05  # the share of reports on equals that may have a false claim that is called shown
# Of claims that are called likely, on average at most 5 % are false. With few seeds, tests with moderated
# variances are wrong a little more often than their level says.
LIKELY_LEVEL = 0.04

Verdict = Literal["more", "less", "undecided", "equal", "too_few_seeds"]
Level = Literal["shown", "likely"]
Key = tuple[str, frozenset[int]]  # of a comparison or a ranking: its quantity and its groups

LEVEL = 0.05  # of an interval that is corrected for no other comparison

ZERO = Estimate(0.0, 0.0, 1, 1.0)  # what a difference is compared with


def key_of(quantity: Quantity, *groups: Group) -> Key:
    return quantity.name, frozenset(map(id, groups))


@dataclass(frozen=True)
class Ask:
    """What a rule asks of one quantity."""

    quantity: Quantity
    pairs: Sequence[tuple[Group, Group]]  # left and right; the same group twice to compare its value with 0
    correction: Correction | None = None  # of a family, whose comparisons can be shown; None: only likely
    groups: Sequence[Group] = ()  # of which each is compared with every other
    ranked: bool = False  # whether to ask which of these is the best and which the worst
    chosen_from: int = 1  # the value was chosen as the largest of so many

    @classmethod
    def of(cls, quantity: Quantity, pairs: Iterable[tuple[Group, Group]], of_sweep: bool = False) -> Ask:
        """Compare the two groups of each pair; those in which one has no value are left out.

        of_sweep: whether the sweep asks it.
        """
        known = [(one, other) for one, other in pairs if quantity.sample(one) and quantity.sample(other)]
        return cls(quantity, known, holm if of_sweep else None)

    @classmethod
    def against(cls, quantity: Quantity, reference: Group | None, others: Sequence[Group]) -> Ask:
        """Compare each of `others`, on the left, with the reference; nothing without one."""
        return cls(quantity, [(other, reference) for other in others if reference], dunnett)

    @classmethod
    def among(cls, quantity: Quantity, groups: Sequence[Group], ranked: bool = False) -> Ask:
        """Compare each group with every other. All have a value."""
        return cls(quantity, [*combinations(groups, 2)], groups=groups, ranked=ranked)

    @classmethod
    def best(cls, quantity: Quantity, groups: Sequence[Group]) -> Ask:
        """Like `among`, and ask which one is the best and which the worst."""
        return cls.among(quantity, groups, ranked=True)

    @property
    def keys(self) -> list[Key]:
        return [key_of(self.quantity, *pair) for pair in self.pairs]

    @property
    def family(self) -> object:
        """The same for comparisons that are corrected together: with one reference, or the same pairs."""
        references = {id(right) for _, right in self.pairs}
        return (self.quantity.name, *references) if self.correction is dunnett else tuple(self.keys)


@dataclass(frozen=True)
class Compared:
    """Two configurations compared in one quantity."""

    quantity: Quantity
    left: Group
    right: Group  # the left one itself where a difference was compared with 0
    tolerated: float  # the difference, on the scale of the comparison, that does not matter
    chosen_from: int = 1  # see `Ask`
    decision: Decision | None = None  # None with too few seeds, or if values are equal in every seed
    level: Level = "likely"  # what the comparison is called if it is decided
    together: int = 0  # the number of comparisons that were corrected together

    @cached_property
    def values(self) -> tuple[float, float]:
        """The two means that are printed, in the unit of the quantity; geometric for ratios."""
        mean_of = self.quantity.mean_of
        return mean_of(self.left), 0.0 if self.right is self.left else mean_of(self.right)

    @cached_property
    def same(self) -> bool:
        """Whether the values are equal in every seed."""
        left, right = self.quantity.values(self.left), self.quantity.values(self.right)
        return not any(left.values()) if self.right is self.left else left == right

    @property
    def verdict(self) -> Verdict:
        """`more`: the left value is larger. `equal`: the values are equal in every seed."""
        if self.same:
            return "equal"
        if self.decision is None:
            return "too_few_seeds"
        if not self.decision.decided:
            return "undecided"
        return "more" if self.decision.contrast.estimate > 0 else "less"

    @property
    def decided(self) -> bool:
        """Whether a difference is claimed."""
        return self.verdict in ("more", "less")

    @property
    def left_is_better(self) -> bool:
        """Whether the left side is claimed to be better."""
        return self.verdict == ("less" if self.quantity.lower_is_better else "more")

    @property
    def right_is_better(self) -> bool:
        return self.decided and not self.left_is_better

    @property
    def within_tolerance(self) -> bool:
        """Whether the whole interval is of differences that do not matter."""
        low, high = self._bounds
        return -self.tolerated <= low and high <= self.tolerated

    @property
    def keeps(self) -> bool:
        """Whether the left side is at most so much worse that it does not matter."""
        low, high = self._bounds
        return self.same or (-high if self.quantity.lower_is_better else low) > -self.tolerated

    @property
    def _bounds(self) -> Bounds:
        """The interval of the difference at the corrected level; infinite if it is unknown."""
        if self.same:
            return 0.0, 0.0
        return (self.decision.low, self.decision.high) if self.decision else (-inf, inf)

    @property
    def interval(self) -> Bounds | None:
        """The interval of the difference or ratio, at the corrected level, within what is possible."""
        if self.decision is None:
            return None
        bounds = self.decision.low, self.decision.high
        low, high = (self.quantity.limited(bound, self.right) for bound in bounds)
        return self.quantity.unscaled(low), self.quantity.unscaled(high)

    @property
    def _open(self) -> Decision | None:
        """What is undecided; None if it is decided, or there is nothing to decide."""
        return self.decision if self.verdict == "undecided" else None

    @property
    def hopeless(self) -> bool:
        """Whether no number of seeds would probably decide it."""
        return bool(self._open and not can_be_decided(self._open.contrast, self._open.level))

    @property
    def seeds_to_decide(self) -> int | None:
        """Seeds per configuration that would probably decide it; None if it is decided or hopeless."""
        return seeds_to_decide(self._open.contrast, self._open.level) if self._open else None

    @property
    def swapped(self) -> Compared:
        """The same comparison with the sides exchanged."""
        decision = self.decision and replace(self.decision, contrast=self.decision.contrast.swapped)
        return replace(self, left=self.right, right=self.left, decision=decision)

    @property
    def written(self) -> str:
        """`+0.6 points (+0.2 to +1.0: likely)`: the difference, its interval and how sure it is."""
        return written(self.data())

    @property
    def remark(self) -> str:
        """` (+0.2 to +1.0: likely)`, ` (−0.3 to +1.0: undecided)`: the interval and how sure it is."""
        return remark(self.data())

    def data(self) -> dict[str, Any]:
        """Its numbers, for findings.json."""
        return {
            "quantity": self.quantity.name,
            "left": [row.key for row in self.left.ok_rows],
            "right": None if self.right is self.left else [row.key for row in self.right.ok_rows],
            "values": list(self.values),
            "scale": "ratio" if self.quantity.ratio else "difference",
            "interval": self.interval,
            "p": self.decision.p if self.decision else None,
            "level": self.level,
            "compared_together": self.together,
            "between_sessions": sqrt(self.decision.contrast.between) if self.decision else 0.0,
            "decision": self.verdict,
            "within_tolerance": self.within_tolerance,
            "keeps": self.keeps,
            "seeds_to_decide": self.seeds_to_decide,
            "hopeless": self.hopeless,
        }


def compared_data(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """The numbers of comparisons, for findings.json."""
    return [each.data() for each in compared]


@dataclass(frozen=True)
class Claims:
    """The decided comparisons of a report.

    errors: the relative error of a difference of cluster times, by workload. asks: what the rule that
    receives them asked; iteration gives an answer to each.
    """

    compared: Mapping[Key, Compared] = field(default_factory=dict)  # in the order in which they were asked
    extremes: Mapping[Key, tuple[Group | None, Group | None]] = field(default_factory=dict)  # see `Answer`
    errors: Mapping[Workload, float] = field(default_factory=dict)
    asks: Sequence[Ask] = ()

    def __iter__(self) -> Iterator[Answer]:
        return map(self.answer, self.asks)

    @property
    def all(self) -> list[Compared]:
        return [*self.compared.values()]

    def answer(self, ask: Ask) -> Answer:
        """The answer to a rule that asked this."""
        return Answer(self, ask, *self.extremes.get(key_of(ask.quantity, *ask.groups), (None, None)))

    def between(self, quantity: Quantity, one: Group, other: Group) -> Compared | None:
        """The comparison of two groups, `one` on the left, if a rule asks for it."""
        found = self.compared.get(key_of(quantity, one, other))
        return found.swapped if found and found.left is not one else found


@dataclass(frozen=True)
class Answer:
    """The answer to what a rule asked."""

    claims: Claims
    ask: Ask
    best: Group | None  # shown to be better than every other; None if that is undecided
    worst: Group | None  # every other is shown to be better; None if that is undecided

    @property
    def groups(self) -> Sequence[Group]:
        """Those of which each was compared with every other."""
        return self.ask.groups

    @cached_property
    def compared(self) -> list[Compared]:
        """Each pair, with its sides as in the question."""
        return [self.between(*pair) for pair in self.ask.pairs]

    def between(self, one: Group, other: Group) -> Compared:
        """The comparison of two groups, `one` on the left. Raises KeyError if they were not compared."""
        if found := self.claims.between(self.ask.quantity, one, other):
            return found
        raise KeyError("the groups were not compared")

    def of(self, group: Group) -> list[Compared]:
        """The comparisons of a group, on the left, with every other."""
        return [self.between(group, other) for other in self.groups if other is not group]

    def better(self, one: Group, other: Group) -> bool:
        """Whether `one` is claimed to be better."""
        return self.between(one, other).left_is_better

    @property
    def may_be_best(self) -> list[Group]:
        """The groups than which no other is claimed to be better."""
        if self.best:
            return [self.best]
        return [group for group in self.groups if not any(each.right_is_better for each in self.of(group))]


def decide(asks: Sequence[Ask], errors: Mapping[Workload, float], tolerance: Tolerance) -> Claims:
    """Decide all comparisons of a report together, each once.

    Args:
        errors: the relative error of a difference of cluster times, by workload.
        tolerance: differences that do not matter.
    """
    compared: dict[Key, Compared] = {}
    for ask in asks:
        for key, pair in zip(ask.keys, ask.pairs, strict=True):
            if key not in compared or ask.correction is dunnett:  # with the reference on the right
                tolerated = _tolerated(ask.quantity, tolerance)
                compared[key] = Compared(ask.quantity, *pair, tolerated, ask.chosen_from)
    contrasts = _contrasts(compared, errors)
    families: dict[object, tuple[Correction, dict[Key, None]]] = {}
    rankings: dict[Key, Ask] = {}
    for ask in asks:
        known = dict.fromkeys(key for key in ask.keys if key in contrasts)
        if ask.correction and known:
            families.setdefault(ask.family, (ask.correction, {}))[1].update(known)
        if ask.ranked and len(ask.groups) > 1 and len(known) == len(ask.keys):
            rankings.setdefault(key_of(ask.quantity, *ask.groups), ask)
    level = FALSE_SHOWN / max(1, len(families) + len(rankings))
    decisions: dict[Key, tuple[Decision, Level, int]] = {}
    for correction, keys in families.values():
        corrected = correction([contrasts[key] for key in keys], level)
        for key, decision in zip(keys, corrected, strict=True):
            decisions.setdefault(key, (decision, "shown", len(keys)))
    factors = [compared[key].chosen_from for key in contrasts]
    explored = benjamini_hochberg([*contrasts.values()], LIKELY_LEVEL, factors)
    for key, decision in zip(contrasts, explored, strict=True):
        # What the sweep asks is likely where it is decided with all other comparisons, and not by itself.
        if key not in decisions or (decision.decided and not decisions[key][0].decided):
            decisions[key] = decision, "likely", len(contrasts)
    for key, (decision, called, together) in decisions.items():
        compared[key] = replace(compared[key], decision=decision, level=called, together=together)
    claims = Claims(compared, errors=errors)
    return replace(claims, extremes={key: _extremes(claims, ask, level) for key, ask in rankings.items()})


def _extremes(claims: Claims, ask: Ask, level: float) -> tuple[Group | None, Group | None]:
    """The groups that are shown to be the best and the worst; None where that is undecided."""

    def found(smallest: bool) -> Group | None:
        for group in ask.groups:
            others = [other for other in ask.groups if other is not group]
            against = [claims.between(ask.quantity, other, group) for other in others]
            contrasts = [each.decision.contrast for each in against if each and each.decision]
            if is_extreme(contrasts, level, smallest):
                return group
        return None

    return found(ask.quantity.lower_is_better), found(not ask.quantity.lower_is_better)


def _contrasts(compared: Mapping[Key, Compared], errors: Mapping[Workload, float]) -> dict[Key, Contrast]:
    """Left minus right of each pair that can be compared: with enough seeds, and not all equal."""
    pools: dict[tuple[str, frozenset[Workload]], dict[int, Estimate]] = {}
    found = {}
    for key, each in compared.items():
        sample = each.quantity.sample
        if each.same or min(len(sample(group)) for group in (each.left, each.right)) < MIN_SEEDS:
            continue
        pool = each.quantity.name, _pool(each)
        if pool not in pools:
            groups = [group for group in _compared_in(compared, *pool) if len(sample(group)) >= LEAST_SEEDS]
            pools[pool] = dict(zip(map(id, groups), estimates(each.quantity, groups, errors), strict=True))
        other = ZERO if each.right is each.left else pools[pool][id(each.right)]
        found[key] = Contrast(pools[pool][id(each.left)], other)
    return found


def _pool(each: Compared) -> frozenset[Workload]:
    """The workloads whose configurations complete the variances of a pair.

    A run on one node has no links, and is compared with those over each.
    """
    found = {each.left.workload, each.right.workload}
    return frozenset(found - {workload.without_links for workload in found if workload.link})


def _compared_in(
    compared: Mapping[Key, Compared], quantity: str, workloads: frozenset[Workload]
) -> list[Group]:
    """The configurations of workloads that are compared in a quantity; those on one node are in all."""
    without_links = {each.without_links for each in workloads}
    groups = {
        id(group): group
        for (name, _), each in compared.items()
        if name == quantity
        for group in (each.left, each.right)
        if group.workload in workloads or (group.shape.nodes == 1 and group.workload in without_links)
    }
    return [*groups.values()]


def _tolerated(quantity: Quantity, tolerance: Tolerance) -> float:
    """The tolerated difference on the scale of the comparison."""
    if quantity.ratio:
        return log1p(tolerance.time)
    return tolerance.accuracy if quantity in (Q.accuracy, Q.averaging_gain) else 0.0


def speedup_interval(claims: Claims, serial: Group | None, group: Group) -> Bounds | None:
    """The interval of the comparison of a configuration's time with serial's.

    It is the one at which a finding decided the comparison. If no finding makes it, the interval has the
    same errors and no correction for other comparisons.

    Returns:
        None without a speedup, or with too few seeds on a side.
    """
    if serial is None or group.serial or Q.speedup.over(group) is None:
        return None
    if found := claims.between(Q.train_s, serial, group):
        return found.interval
    pair = [serial, group]
    if min(len(Q.train_s.sample(each)) for each in pair) < MIN_SEEDS:
        return None
    return _interval(Q.train_s, Contrast(*estimates(Q.train_s, pair, claims.errors)))


def time_interval(quantity: Quantity, group: Group, claims: Claims) -> Bounds | None:
    """The interval of the mean of a configuration's times, with the errors that a speedup has.

    Returns:
        None with too few seeds.
    """
    if len(quantity.sample(group)) < SPREAD_SEEDS:
        return None
    (found,) = estimates(quantity, [group], claims.errors)
    return _interval(quantity, Contrast(found, ZERO))


def _interval(quantity: Quantity, contrast: Contrast) -> Bounds:
    """At LEVEL, without a correction for other comparisons."""
    half = critical_t(LEVEL, contrast.dof) * contrast.standard_error
    return quantity.unscaled(contrast.estimate - half), quantity.unscaled(contrast.estimate + half)


def speedup_intervals(comparison: Comparison, claims: Claims) -> Callable[[Group], Bounds | None]:
    """The interval of each configuration of a sweep."""
    serial = {group.workload: group for group in reversed(comparison.groups) if group.serial and group.ok}
    return lambda group: speedup_interval(claims, serial.get(group.workload.without_links), group)
