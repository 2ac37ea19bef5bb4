"""How many seeds would probably decide a comparison."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import inf, sqrt

from scipy.special import ndtr

from orchestrator.report.statistics.contrasts import MANY_DOF, MIN_SEEDS, Contrast, critical_t

PROBABLE = 0.85  # by calculation; three of four proposals come true, as what is undecided was chosen
MOST_SEEDS = 100  # that are proposed


def seeds_to_decide(contrast: Contrast, level: float, most: int = MOST_SEEDS) -> int | None:
    """The seeds per configuration with which this difference is decided with a probability of PROBABLE.

    Args:
        level: the level at which it is decided, corrected for the other comparisons.

    Returns:
        None if more than `most` seeds would be needed.
    """
    seeds = range(max(MIN_SEEDS, contrast.left.seeds + 1), most + 1)
    index = bisect_left(seeds, PROBABLE, key=lambda count: decided_with(contrast, count, level))
    return seeds[index] if index < len(seeds) else None


def can_be_decided(contrast: Contrast, level: float) -> bool:
    """Whether some number of seeds probably decides it: not if two sessions differ as much."""
    return decided_with(contrast, inf, level) >= PROBABLE


def decided_with(contrast: Contrast, seeds: float, level: float) -> float:
    """The probability that a difference is decided once each configuration has so many seeds.

    The mean over all seeds varies around that over those which have run, by what the new ones add. The
    true difference is as uncertain as it was measured, which the estimate alone would hide: comparisons
    that stayed undecided are those whose difference was measured too large or too small.

    Source:
        Spiegelhalter, Freedman (1986), A predictive approach to selecting the size of a clinical trial,
        based on subjective clinical opinion. Statistics in Medicine 5.
    """
    sides = contrast.left, contrast.right
    if seeds < inf:
        later = Contrast(*(replace(each, seeds=round(seeds)) for each in sides))
        bound = critical_t(level, later.dof) * later.standard_error
    else:
        bound = critical_t(level, MANY_DOF) * sqrt(contrast.between)
    # The mean of all seeds, given that of the first ones, varies by what the new ones are of it.
    added = sqrt(max(0.0, sum(each.squared_error - each.variance / seeds for each in sides)))
    distance = abs(contrast.estimate)
    if added == 0:
        return float(distance > bound)
    return float(ndtr((distance - bound) / added) + ndtr((-distance - bound) / added))
