"""How many seeds would probably decide a comparison."""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt

from scipy.special import nctdtr, stdtr

from orchestrator.report.statistics.contrasts import MIN_SEEDS, Contrast, critical_t

POWER = 0.8
MOST_SEEDS = 100  # that are proposed


def seeds_to_decide(contrast: Contrast, critical: float, most: int = MOST_SEEDS) -> int | None:
    """The seeds per configuration with which this difference is decided with a probability of 80 %.

    It takes the estimates for the truth, and the corrected level of this comparison as it is.

    Args:
        critical: the |t| that decides the comparison now.

    Returns:
        None if more than `most` seeds would be needed.
    """
    level = 2 * float(stdtr(contrast.dof, -critical))
    seeds = range(MIN_SEEDS, most + 1)
    index = bisect_left(
        seeds, POWER, key=lambda count: power(contrast.estimate, contrast.variances, count, level)
    )
    return seeds[index] if index < len(seeds) else None


def power(difference: float, variances: tuple[float, float], seeds: int, level: float) -> float:
    """The probability that Welch's test at this level decides a difference in its direction.

    Args:
        variances: of one value on each side; the right one is 0 for differences of pairs.
    """
    left, right = variances
    if left + right == 0:
        return 1.0 if difference else 0.0
    dof = (left + right) ** 2 / (left**2 + right**2) * (seeds - 1)
    shift = abs(difference) / sqrt((left + right) / seeds)
    return float(1 - nctdtr(dof, shift, critical_t(level, dof)))


def least_difference(variances: tuple[float, float], seeds: int, level: float) -> float:
    """The difference that is decided with a probability of 80 %, on the scale of the variances."""
    low, high = 0.0, 100 * sqrt(sum(variances))
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, variances, seeds, level) < POWER else (low, middle)
    return high
