"""The decisions that findings hold, by the two configurations compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.report.findings.base import Finding
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S, Quantity
from orchestrator.report.model.groups import Group, one_per_work, same_work

Keys = frozenset[str]
SWAPPED = {"more": "less", "less": "more"}


@dataclass(frozen=True)
class Decision:
    """A comparison of two configurations, as in the data of a finding.

    values: the two means. interval: of the ratio or difference left to right, at the corrected level; None
    with too few seeds. verdict: `more` if the left value is claimed to be larger. seeds: that would
    probably decide it. open_because: why it is undecided, if it is.
    """

    values: tuple[float, float]
    ratio: bool
    interval: tuple[float, float] | None
    verdict: str
    seeds: int | None
    open_because: str = "undecided"

    @classmethod
    def of(cls, data: dict[str, Any]) -> Decision:
        return cls(
            tuple(data["values"]),
            data["scale"] == "ratio",
            data["interval"],
            data["decision"],
            data["seeds_to_decide"],
            data["open_because"],
        )

    @property
    def decided(self) -> bool:
        return self.verdict in SWAPPED

    @property
    def difference(self) -> float:
        return self.values[0] - self.values[1]

    @property
    def swapped(self) -> Decision:
        """The same comparison with the sides exchanged."""
        return replace(
            self,
            values=self.values[::-1],
            interval=self._swapped_interval,
            verdict=SWAPPED.get(self.verdict, self.verdict),
        )

    @property
    def _swapped_interval(self) -> tuple[float, float] | None:
        if self.interval is None:
            return None
        low, high = self.interval
        return (1 / high, 1 / low) if self.ratio else (-high, -low)


class Decisions:
    """The comparisons of all findings, as decided by their claims."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._found: dict[tuple[str, Keys, Keys], Decision] = {}
        for finding in findings:
            for name in ("compared", "compared_with_serial"):
                compared = finding.data.get(name)
                for data in compared if isinstance(compared, list) else ():
                    if data["right"] is not None:  # otherwise a difference was compared with 0
                        self._add(data)

    def _add(self, data: dict[str, Any]) -> None:
        """Several findings may compare a pair: what one of them decides is decided."""
        name = (data["quantity"], frozenset(data["left"]), frozenset(data["right"]))
        new, known = Decision.of(data), self._found.get(name)
        if known is None or (new.decided and not known.decided):
            self._found[name] = new

    def between(self, quantity: Quantity, one: Group, other: Group) -> Decision | None:
        """The comparison of two groups, `one` on the left; None if no finding compares them."""
        left, right = (frozenset(row.key for row in group.ok_rows) for group in (one, other))
        as_asked = self._found.get((quantity.name, left, right))
        reverse = self._found.get((quantity.name, right, left))
        found = [*([as_asked] if as_asked else []), *([reverse.swapped] if reverse else [])]
        return next((each for each in found if each.decided), found[0] if found else None)


class Claimed:
    """What the findings claim of the configurations of a workload.

    Configurations that do the same work per step differ in time only by chance: the first of them was
    compared, and its decisions hold for the others.
    """

    def __init__(self, decisions: Decisions, groups: Sequence[Group]) -> None:
        """groups: the ranked configurations, in the order of the findings."""
        self.decisions = decisions
        self._works = one_per_work(groups)

    def timed_as(self, group: Group) -> Group:
        """The configuration that was compared by time, which does the same work."""
        return next((each for each in self._works if same_work(each, group)), group)

    def time_of(self, group: Group) -> float:
        return TRAIN_S.mean_of(self.timed_as(group))

    def time(self, one: Group, other: Group) -> Decision | None:
        """The comparison of two times; None for the same work."""
        if same_work(one, other):
            return None
        return self.decisions.between(TRAIN_S, self.timed_as(one), self.timed_as(other))

    def accuracy(self, one: Group, other: Group) -> Decision | None:
        """The comparison of two accuracies."""
        return self.decisions.between(ACCURACY, one, other)

    def faster(self, one: Group, other: Group) -> bool:
        """Whether `one` is claimed to be faster."""
        found = self.time(one, other)
        return found is not None and found.verdict == "less"

    def more_accurate(self, one: Group, other: Group) -> bool:
        """Whether `one` is claimed to be more accurate."""
        found = self.accuracy(one, other)
        return found is not None and found.verdict == "more"
