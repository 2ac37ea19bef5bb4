"""What a finding is, and how it speaks of differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orchestrator.report.model.groups import Group, Spread
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Row


@dataclass(frozen=True)
class Finding:
    """A sentence or two that follow from numbers, with the runs that they come from.

    kind: a `caution` says what keeps numbers from being compared or trusted. work: what was trained,
    where the sweep has several works. topic: what it is about, in a word or two.
    """

    kind: Literal["finding", "caution"]
    text: str
    rows: tuple[Row, ...] = ()
    work: Workload | None = None
    topic: str = ""


Verdict = Literal["beyond", "within", "once", "equal"]


def verdict(left: Spread, right: Spread) -> Verdict:
    """How much a difference of means is worth.

    within: the ranges over seeds meet, it may be chance. once: one side has a single seed, so nothing
    says how far chance reaches. beyond: every seed of the one lies above every seed of the other.
    """
    if left.mean == right.mean:
        return "equal"
    if left.overlaps(right):
        return "within"
    return "once" if min(left.seeds, right.seeds) < 2 else "beyond"


REMARKS: dict[Verdict, str] = {
    "beyond": "",
    "within": ", a difference within the spread of seeds",
    "once": ", a difference not repeated often enough to tell from chance",
    "equal": ", no difference",
}


def evidence(groups: Iterable[Group | None]) -> tuple[Row, ...]:
    """The ok runs of the groups, each once."""
    rows = {row.key: row for group in groups if group for row in group.ok_rows}
    return tuple(rows.values())
