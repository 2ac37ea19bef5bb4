"""Claims: the comparisons of a report, as its rules ask for them and read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from orchestrator.report.findings.compared import Compared
from orchestrator.report.findings.decide import Answers, Asked, Question, decide, name_of
from orchestrator.report.metrics.estimates import Sampling
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.statistics.families import dunnett, holm


@dataclass(frozen=True)
class Claims:
    """Decides the comparisons of a report, each of which is made once.

    What a report asks in any case is *shown* if it is decided: comparisons with one reference, as with
    serial, which of several is the best, and questions of the sweep. All of these together have a
    probability of at most 5 % of a false claim. What is decided only among all comparisons is *likely*: of
    those claims, on average at most 5 % are false.

    Rules run twice: with `Claims()`, which notes what they ask and decides nothing, and with `decided()`.
    What a rule compares may not depend on what is decided.

    Attributes:
        errors: the relative error of a difference of cluster times, by workload.
        tolerance: differences that do not matter.
        answers: None while rules ask.
    """

    errors: Mapping[Workload, float] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    asked: Asked = field(default_factory=Asked)
    answers: Answers | None = None

    def decided(self, sample: Sampling = Quantity.sample) -> Claims:
        """The same comparisons, decided. sample: the values of a group by seed."""
        answers = decide(self.asked, self.errors, self.tolerance, sample)
        return Claims(self.errors, self.tolerance, self.asked, answers)

    @property
    def all(self) -> list[Compared]:
        """Every comparison, if they are decided."""
        return [*self.answers.compared.values()] if self.answers else []

    def with_reference(
        self, quantity: Quantity, reference: Group, others: Sequence[Group]
    ) -> list[Compared]:
        """Compare each of `others`, on the left, with the reference."""
        questions = [Question(quantity, other, reference) for other in others]
        if self.answers is None:
            _, names = self.asked.families.setdefault((quantity.name, id(reference)), (dunnett, {}))
            for each in questions:
                self.asked.questions[each.name] = each  # with the reference on the right
                names[each.name] = None
        return [self._compared(each) for each in questions]

    def asked_by_sweep(self, quantity: Quantity, pairs: Sequence[tuple[Group, Group]]) -> list[Compared]:
        """Like `pairs`, for a question that the sweep asks."""
        compared = self.pairs(quantity, pairs)
        if self.answers is None:
            names = {name_of(quantity, each.left, each.right): None for each in compared}
            self.asked.families.setdefault(tuple(names), (holm, names))
        return compared

    def pairs(self, quantity: Quantity, pairs: Sequence[tuple[Group, Group]]) -> list[Compared]:
        """Compare the two groups of each pair; pairs in which one has no value are left out."""
        return [
            self._compared(Question(quantity, one, other))
            for one, other in pairs
            if quantity.sample(one) and quantity.sample(other)
        ]

    def among(self, quantity: Quantity, groups: Sequence[Group]) -> Ranking:
        """Compare each group with every other."""
        return Ranking(groups, self.pairs(quantity, [*combinations(groups, 2)]))

    def all_pairs(self, quantity: Quantity, groups: Sequence[Group]) -> Ranking:
        """Like `among`, and ask which one is the best and which the worst."""
        ranking = self.among(quantity, groups)
        ranked = quantity.name, frozenset(map(id, groups))
        if self.answers is None:
            self.asked.rankings.setdefault(ranked, (quantity, groups))
            return ranking
        worst, best = self.answers.lowest.get(ranked), self.answers.highest.get(ranked)
        if quantity.lower_is_better:
            worst, best = best, worst
        return replace(ranking, best=best, worst=worst)

    def with_zero(
        self, quantity: Quantity, groups: Sequence[Group], chosen_from: int = 1
    ) -> list[Compared]:
        """Compare the mean of a difference with 0. chosen_from: it is the largest of so many."""
        return [self._compared(Question(quantity, group, group, chosen_from)) for group in groups]

    def between(self, quantity: Quantity, one: Group, other: Group) -> Compared | None:
        """The comparison of two groups, `one` on the left, if a rule asks for it and it is decided."""
        found = self.answers.compared.get(name_of(quantity, one, other)) if self.answers else None
        return found.swapped if found and found.left is not one else found

    def _compared(self, question: Question) -> Compared:
        """The comparison of a pair, whichever rules ask for it, with the sides as in the question."""
        if self.answers is None:
            asked = self.asked.questions.setdefault(question.name, question)
            found = Compared(asked.quantity, asked.left, asked.right, asked.values)
        else:
            found = self.answers.compared[question.name]
        return found if found.left is question.left else found.swapped


@dataclass(frozen=True)
class Ranking:
    """Groups of which each was compared with every other; each has a value.

    Attributes:
        best: the group that is shown to be better than every other; None if that is undecided.
        worst: the group than which every other is shown to be better; None if that is undecided.
    """

    groups: Sequence[Group]
    comparisons: Sequence[Compared]
    best: Group | None = None
    worst: Group | None = None

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
        if self.best:
            return [self.best]
        return [group for group in self.groups if not any(each.right_is_better for each in self.of(group))]


def compared_data(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """The numbers of comparisons, for findings.json."""
    return [each.data() for each in compared]
