"""Claims: the comparisons of a report, which share its probability of a false claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import log1p
from typing import Any, Literal

from orchestrator.report.metrics.quantities import Quantity
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.statistics.contrasts import (
    MIN_SEEDS,
    Contrast,
    Sample,
    paired,
    pairing_helps,
    welch,
)
from orchestrator.report.statistics.families import Correction, Decision, dunnett, holm
from orchestrator.report.statistics.power import seeds_to_decide

FALSE_CLAIMS = 0.05  # the share of reports on equals that may contain one

WITHIN_ERROR = "within the error of cluster time"  # a difference that is shown in what was measured

Sampling = Callable[[Quantity, Group], Sample]
Verdict = Literal["more", "less", "undecided", "equal", "too_few_seeds"]


@dataclass(frozen=True)
class Compared:
    """Two configurations compared in one quantity.

    Attributes:
        right: the left group itself where a difference was compared with 0.
        values: the two means that are printed, in the unit of the quantity; geometric for ratios.
        contrast: None if a side has too few seeds.
        by_seed: whether the comparison is paired by seed.
        family_size: the number of comparisons that were corrected together.
        margin: the difference, on the scale of the comparison, that the error of the clock may be.
    """

    quantity: Quantity
    left: Group
    right: Group
    values: tuple[float, float]
    contrast: Contrast | None
    decision: Decision | None
    same: bool
    by_seed: bool
    family_size: int
    margin: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """`more`: the left value is larger. `equal`: the values are equal in every seed."""
        if self.same:
            return "equal"
        if self.contrast is None or self.decision is None:
            return "too_few_seeds"
        if not self.decision.decided or self.within_error:
            return "undecided"
        return "more" if self.contrast.estimate > 0 else "less"

    @property
    def within_error(self) -> bool:
        """Whether the difference is shown in what was measured, but may be the error of the clock."""
        if self.contrast is None or self.decision is None or not self.decision.decided:
            return False
        nearest = self.decision.low if self.contrast.estimate > 0 else -self.decision.high
        return nearest <= self.margin

    @property
    def hidden(self) -> bool:
        """Whether the error of the clock may be as large as the difference, with any number of seeds."""
        return self.contrast is not None and 0 < self.margin >= abs(self.contrast.estimate)

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
        return self.verdict == ("more" if self.quantity.lower_is_better else "less")

    @property
    def swapped(self) -> Compared:
        """The same comparison with the sides exchanged."""
        contrast = self.contrast.swapped if self.contrast else None
        decision = replace(self.decision, contrast=contrast) if self.decision and contrast else None
        return replace(
            self,
            left=self.right,
            right=self.left,
            values=self.values[::-1],
            contrast=contrast,
            decision=decision,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference or ratio, at the corrected level."""
        bounds = self._bounds
        return (self.quantity.unscaled(bounds[0]), self.quantity.unscaled(bounds[1])) if bounds else None

    @property
    def _bounds(self) -> tuple[float, float] | None:
        """The interval on the scale of the comparison, within what is possible."""
        if self.decision is None:
            return None
        low, high = (
            self.quantity.possible(bound, self.right) for bound in (self.decision.low, self.decision.high)
        )
        return low, high

    @property
    def seeds_to_decide(self) -> int | None:
        """Seeds per configuration that would probably decide it; None if it is decided or hopeless."""
        if self.verdict != "undecided" or not self.contrast or not self.decision:
            return None
        if self.hidden:
            return None
        beyond = abs(self.contrast.estimate) - self.margin
        return seeds_to_decide(replace(self.contrast, estimate=beyond), self.decision.critical)

    @property
    def written(self) -> str:
        """`+0.6 points (+0.2 to +1.0)`: the difference, its interval and verdict."""
        return f"{self.quantity.write_difference(*self.values)}{self.remark}"

    @property
    def aside(self) -> str:
        """`, +0.6 points (+0.2 to +1.0)`; with too few seeds no difference, since it would be a claim."""
        return f", {self.written}" if self.contrast else self.remark

    @property
    def remark(self) -> str:
        """` (+0.2 to +1.0)`, ` (−0.3 to +1.0: undecided)`: the interval and the verdict."""
        if self.verdict == "equal":
            return " (equal in every seed)"
        bounds = self._bounds
        if bounds is None:
            return f" (fewer than {MIN_SEEDS} seeds)"
        low, high = map(self.quantity.write_bound, bounds)
        if self.decided:
            return f" ({low} to {high})"
        return f" ({low} to {high}: {self.open_because})"

    @property
    def open_because(self) -> str:
        """`undecided`, or that the difference may be the error of the clock."""
        return WITHIN_ERROR if self.within_error else "undecided"

    @property
    def pair(self) -> tuple[str, frozenset[str]]:
        """What is compared, whichever finding compares it."""
        return self.quantity.name, frozenset(
            row.key for side in (self.left, self.right) for row in side.ok_rows
        )

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
            "paired": self.by_seed,
            "compared_together": self.family_size,
            "least_claimed": self.quantity.unscaled(self.margin) if self.margin else None,
            "decision": self.verdict,
            "seeds_to_decide": self.seeds_to_decide,
            "open_because": self.open_because,
        }


@dataclass(frozen=True)
class Family:
    """Comparisons that are corrected together. Every group has a value.

    chosen_from: each compared value was chosen as the largest of so many, which the level accounts for.
    """

    quantity: Quantity
    pairs: Sequence[tuple[Group, Group]]
    correction: Correction
    chosen_from: int = 1

    def decide(
        self,
        level: float | None,
        sample: Sampling = Quantity.sample,
        errors: Mapping[Workload, float] | None = None,
    ) -> list[Compared]:
        """Compare each pair.

        Args:
            level: the probability of a false claim in this family; None decides nothing.
            sample: the values of a group by seed.
            errors: by workload, the relative error that a difference of cluster times must exceed.
        """

        def margin_of(group: Group) -> float:
            known = errors if errors and self.quantity.timed and group.first.clock == "cluster" else {}
            return log1p(known.get(group.workload, 0.0))

        samples = {id(group): sample(self.quantity, group) for pair in self.pairs for group in pair}
        by_seed = pairing_helps(list(samples.values()))
        resolutions = self._resolutions
        drafts = []
        for left, right in self.pairs:
            one = samples[id(left)]
            other = dict.fromkeys(one, 0.0) if right is left else samples[id(right)]
            compare = paired if by_seed or right is left else welch
            contrast = (
                None
                if one == other
                else compare(one, other, max(resolutions[id(left)], resolutions[id(right)]))
            )
            mean = self.quantity.mean
            values = (mean(one), 0.0 if right is left else mean(other))
            drafts.append((left, right, values, contrast, one == other))
        testable = [contrast for *_, contrast, _ in drafts if contrast]
        correct = holm if by_seed else self.correction
        decided = iter(
            correct(testable, level / self.chosen_from) if level is not None and testable else ()
        )
        return [
            Compared(
                self.quantity,
                left,
                right,
                values,
                contrast,
                next(decided, None) if contrast else None,
                same,
                by_seed=by_seed,
                family_size=len(testable),
                margin=max(map(margin_of, (left, right))),
            )
            for left, right, values, contrast, same in drafts
        ]

    @cached_property
    def _resolutions(self) -> dict[int, float]:
        """The resolution of each group, by its id."""
        return {
            id(group): max(map(self.quantity.resolution, group.ok_rows))
            for pair in self.pairs
            for group in pair
        }


class Claims:
    """Decides the comparisons of a report.

    Each family of comparisons gets the same share of FALSE_CLAIMS and corrects for its own size. The
    families are therefore counted first: rules run once with `Claims()`, whose comparisons are all
    undecided, and then with `counted()`. What a rule compares may not depend on what is decided.
    """

    def __init__(self, level: float | None = None, errors: Mapping[Workload, float] | None = None) -> None:
        """Without comparisons so far.

        Args:
            level: of a family; None counts families and decides nothing.
            errors: as in `Family.decide`.
        """
        self.level = level
        self.errors = errors or {}
        self._decided: dict[object, tuple[Family, list[Compared]]] = {}

    def counted(self) -> Claims:
        """Claims that decide as many families as were compared here."""
        return Claims(FALSE_CLAIMS / max(1, len(self.families)), self.errors)

    @property
    def families(self) -> list[Family]:
        """The families with a comparison that can be decided."""
        return [family for family, found in self._decided.values() if any(each.contrast for each in found)]

    @property
    def all(self) -> list[Compared]:
        """Every comparison so far."""
        return [each for _, found in self._decided.values() for each in found]

    def with_reference(
        self, quantity: Quantity, reference: Group, others: Sequence[Group]
    ) -> list[Compared]:
        """Compare each of `others`, on the left, with the reference."""
        pairs = [(other, reference) for other in _sorted(others)]
        found = {id(each.left): each for each in self._decide(Family(quantity, pairs, dunnett))}
        return [found[id(other)] for other in others]

    def pairs(self, quantity: Quantity, pairs: Sequence[tuple[Group, Group]]) -> list[Compared]:
        """Compare the two groups of each pair; pairs in which one has no value are left out."""
        known = [(one, other) for one, other in pairs if quantity.sample(one) and quantity.sample(other)]
        return self._decide(Family(quantity, known, holm))

    def all_pairs(self, quantity: Quantity, groups: Sequence[Group]) -> Ranking:
        """Compare each group with every other, as naming the best among several requires."""
        pairs = list(combinations(_sorted(groups), 2))
        found = Ranking(groups, self._decide(Family(quantity, pairs, holm)))
        return Ranking(groups, [found.between(one, other) for one, other in combinations(groups, 2)])

    def with_zero(
        self, quantity: Quantity, groups: Sequence[Group], chosen_from: int = 1
    ) -> list[Compared]:
        """Compare the mean of a difference with 0. chosen_from: as in Family."""
        return self._decide(Family(quantity, [(group, group) for group in groups], holm, chosen_from))

    def _decide(self, family: Family) -> list[Compared]:
        """The same family is decided once, whichever rules ask for it."""
        keys = tuple((one.first.key, other.first.key) for one, other in family.pairs)
        name = (family.quantity.name, family.correction, keys)
        if name not in self._decided:
            self._decided[name] = (family, family.decide(self.level, errors=self.errors))
        return self._decided[name][1]


def _sorted(groups: Sequence[Group]) -> list[Group]:
    """Independent of their values, so that rules that ask in different orders share a family."""
    return sorted(groups, key=lambda group: group.first.key)


@dataclass(frozen=True)
class Ranking:
    """Groups of which each was compared with every other; each has a value."""

    groups: Sequence[Group]
    comparisons: Sequence[Compared]

    def between(self, one: Group, other: Group) -> Compared:
        """The comparison of two groups, `one` on the left."""
        for each in self.comparisons:
            if each.left is one and each.right is other:
                return each
            if each.left is other and each.right is one:
                return each.swapped
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
        return [group for group in self.groups if not any(each.right_is_better for each in self.of(group))]

    @property
    def best(self) -> Group | None:
        """The group that is claimed to be better than every other; None if that is undecided."""
        return self._extreme(lambda each: each.left_is_better)

    @property
    def worst(self) -> Group | None:
        """The group than which every other is claimed to be better; None if that is undecided."""
        return self._extreme(lambda each: each.right_is_better)

    def _extreme(self, claimed: Callable[[Compared], bool]) -> Group | None:
        if len(self.groups) < 2:
            return None
        return next((group for group in self.groups if all(map(claimed, self.of(group)))), None)


def compared_data(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """The numbers of comparisons, for findings.json."""
    return [each.data() for each in compared]
