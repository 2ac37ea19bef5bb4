"""A quantity over several seeds, and what a difference between two such quantities is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from orchestrator.report.formats import JOIN

Verdict = Literal["beyond_range", "within_range", "single_seed", "equal"]


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum of a quantity over the seeds of a configuration."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are not None; None if there are none."""
        known = [value for value in values if value is not None]
        return cls(fmean(known), min(known), max(known), len(known)) if known else None

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges over seeds overlap, so that the difference may be chance."""
        return self.low <= other.high and other.low <= self.high

    def range(self, write: Callable[[float], str]) -> str:
        """`4.00–4.20 s`: minimum to maximum, a shared unit once; one value if both look equal."""
        low, high = write(self.low), write(self.high)
        if low == high:
            return low
        number, _, unit = low.partition(JOIN)
        if unit and high.endswith(JOIN + unit):
            low = number
        elif low.endswith("%") and high.endswith("%"):
            low = low.removesuffix("%")
        return f"{low} to {high}" if low[0] in "+−±" else f"{low}–{high}"


def compare_spreads(left: Spread, right: Spread) -> Verdict:
    """What the difference of two means is worth.

    Returns:
        equal: the means are equal. within_range: the ranges over seeds overlap, so the difference may be
        chance. single_seed: the ranges do not overlap, but one side has only one seed. beyond_range: every
        seed of one side lies above every seed of the other.
    """
    if left.mean == right.mean:
        return "equal"
    if left.overlaps(right):
        return "within_range"
    return "single_seed" if min(left.seeds, right.seeds) < 2 else "beyond_range"
