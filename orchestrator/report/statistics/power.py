"""How many seeds would probably decide a comparison."""

from __future__ import annotations

from math import sqrt

from scipy import stats

from orchestrator.report.statistics.contrasts import MIN_SEEDS, Contrast

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
    level = 2 * float(stats.t.sf(critical, contrast.dof))
    left, right = contrast.variances
    for seeds in range(MIN_SEEDS, most + 1):
        if power(contrast.estimate, (left, right), seeds, level) >= POWER:
            return seeds
    return None


def power(difference: float, variances: tuple[float, float], seeds: int, level: float) -> float:
    """The probability that Welch's test at this level decides a difference in its direction.

    Args:
        variances: of one value on each side; the right one is 0 for differences of pairs.
    """
    left, right = variances
    squared = (left + right) / seeds
    if squared == 0:
        return 1.0 if difference else 0.0
    dof = (left + right) ** 2 / (left**2 + right**2) * (seeds - 1)
    return float(stats.nct.sf(stats.t.isf(level / 2, dof), dof, abs(difference) / sqrt(squared)))


def least_difference(variances: tuple[float, float], seeds: int, level: float) -> float:
    """The difference that is decided with a probability of 80 %, on the scale of the variances."""
    low, high = 0.0, 100 * sqrt(sum(variances))
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, variances, seeds, level) < POWER else (low, middle)
    return high
