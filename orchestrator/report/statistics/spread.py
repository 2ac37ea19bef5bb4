"""A quantity over the seeds of one configuration, for display.

Its 95 % interval is evidence. The range from its minimum to its maximum is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, geometric_mean

import numpy as np
from scipy.special import ndtri, stdtrit

from orchestrator.report.formats import JOIN

LEVEL = 0.95  # of intervals
MIN_SEEDS = 3  # with fewer, an interval is too wide to say anything


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


def t_quantile(dof: int) -> float:
    """Half the width of a 95 % interval in standard errors, by Student's t.

    From scipy.special, since scipy.stats is slow to load.
    """
    return float(stdtrit(dof, (1 + LEVEL) / 2))


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's interval of a probability."""
    z = float(ndtri((1 + LEVEL) / 2))
    centre = (successes + z**2 / 2) / (trials + z**2)
    half = z * sqrt(successes * (trials - successes) / trials + z**2 / 4) / (trials + z**2)
    low = 0.0 if successes == 0 else centre - half
    return low, 1.0 if successes == trials else centre + half


def accuracy_interval(values: Sequence[float], images: int | None) -> tuple[float, float] | None:
    """The 95 % interval of an accuracy on new images and with new seeds.

    Its error has two parts: that of the mean over seeds (Student's t), and that of the test set, which is
    one draw of `images` images (binomial; Wilson's interval). Their half widths add as squares.

    Args:
        values: accuracies, one per seed.
        images: size of the test set; None leaves its error out.

    Returns:
        Bounds within 0 … 1; None for fewer than MIN_SEEDS values.

    Source:
        Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.
    """
    if len(values) < MIN_SEEDS:
        return None
    mean = float(np.mean(values))
    of_seeds = float(t_quantile(len(values) - 1) * np.std(values, ddof=1)) / sqrt(len(values))
    below = above = 0.0
    if images:
        low, high = _wilson(round(mean * images), images)
        below, above = mean - low, high - mean
    return max(0.0, mean - sqrt(of_seeds**2 + below**2)), min(1.0, mean + sqrt(of_seeds**2 + above**2))


def geometric_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a geometric mean with new seeds, by Student's t of the logarithms.

    values: > 0, one per seed. None for fewer than MIN_SEEDS.
    """
    if len(values) < MIN_SEEDS:
        return None
    logs = [log(value) for value in values]
    half = t_quantile(len(logs) - 1) * float(np.std(logs, ddof=1)) / sqrt(len(logs))
    middle = float(np.mean(logs))
    return exp(middle - half), exp(middle + half)
