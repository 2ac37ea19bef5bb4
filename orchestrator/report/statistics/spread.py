"""Spread: a quantity over the seeds of a configuration, for display. A range is no evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp
from statistics import fmean, geometric_mean

from orchestrator.report.formats import JOIN, count


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum of a quantity over the seeds of a configuration."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float | None], geometric: bool = False) -> Spread | None:
        """The spread of the values that are not None; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        mean = geometric_mean(known) if geometric and min(known) > 0 else fmean(known)
        return cls(mean, min(known), max(known), len(known))

    def shifted(self, shift: float, ratio: bool) -> Spread:
        """By a difference, or by the logarithm of a ratio."""
        if not shift:
            return self
        low, mean, high = (
            each * exp(shift) if ratio else each + shift for each in (self.low, self.mean, self.high)
        )
        return Spread(mean, low, high, self.seeds)

    def range(self, write: Callable[[float], str]) -> str:
        """`4.00–4.20 s`: minimum to maximum, a shared unit once; one value if both look equal."""
        return span(self.low, self.high, write)

    def range_of_seeds(self, write: Callable[[float], str]) -> str:
        """`4.00–4.20 s, 5 seeds`."""
        return f"{self.range(write)}, {count(self.seeds, 'seed')}"


def span(low: float, high: float, write: Callable[[float], str]) -> str:
    """`4.00–4.20 s`: two values, a shared unit once; one value if both look equal."""
    first, last = write(low), write(high)
    if first == last:
        return first
    number, _, unit = first.partition(JOIN)
    if unit and last.endswith(JOIN + unit):
        first = number
    elif first.endswith("%") and last.endswith("%"):
        first = first.removesuffix("%")
    return f"{first} to {last}" if first[0] in "+−±" else f"{first}–{last}"
