"""The decisions that findings hold, by the two configurations compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import ACCURACY
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.power import MOST_SEEDS

Keys = frozenset[str]
SWAPPED = {"more": "less", "less": "more"}


@dataclass(frozen=True)
class Decision:
    """A comparison of two configurations, as in the data of a finding.

    values: the two means. interval: of the ratio or difference left to right, at the corrected level; None
    with too few seeds. verdict: `more` if the left value is claimed to be larger. seeds: that would
    probably decide it. hopeless: whether no number of seeds would.
    """

    values: tuple[float, float]
    ratio: bool
    interval: tuple[float, float] | None
    verdict: str
    seeds: int | None
    hopeless: bool

    @classmethod
    def of(cls, data: dict[str, Any]) -> Decision:
        return cls(
            tuple(data["values"]),
            data["scale"] == "ratio",
            data["interval"],
            data["decision"],
            data["seeds_to_decide"],
            data["hopeless"],
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
        """Several findings may tell of a pair, which is compared once."""
        name = (data["quantity"], frozenset(data["left"]), frozenset(data["right"]))
        self._found[name] = Decision.of(data)

    def between(self, quantity: Quantity, one: Group, other: Group) -> Decision | None:
        """The comparison of two groups, `one` on the left; None if no finding compares them."""
        left, right = (frozenset(row.key for row in group.ok_rows) for group in (one, other))
        as_asked = self._found.get((quantity.name, left, right))
        reverse = self._found.get((quantity.name, right, left))
        return as_asked or (reverse.swapped if reverse else None)


def seeds_needed(comparisons: Iterable[Decision | None], question: str) -> str:
    """How many seeds would probably decide what is undecided, as a sentence; empty if all is decided.

    question: what the comparisons leave open, `which is faster`.
    """
    undecided = [found for found in comparisons if found and found.verdict == "undecided"]
    known = [found.seeds for found in undecided if found.seeds]
    if known:
        what = question if len(known) == len(undecided) else f"a part of {question}"
        seeds = max(known)
        return (
            f"If the differences are as measured, {count(seeds, 'seed')} per configuration "
            f"(--repeat {seeds}) would probably decide {what}."
        )
    if any(found.hopeless for found in undecided):
        return f"No number of seeds would decide {question}: two sessions differ as much."
    if undecided:
        return f"More than {MOST_SEEDS} seeds would be needed to decide {question}."
    return ""


def interval_in_points(found: Decision) -> str:
    """`−10.8 to −0.4`; empty with too few seeds."""
    return " to ".join(ACCURACY.write_bound(bound) for bound in found.interval or ())
