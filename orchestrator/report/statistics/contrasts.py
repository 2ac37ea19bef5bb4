"""The difference of two means over seeds, by Welch's t with moderated variances.

Ratios are differences of logarithms. Everything here is on the scale of the comparison. The last functions
calculate how many seeds would probably decide a comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt

from scipy.special import ndtr, stdtr, stdtrit

from orchestrator.report.statistics.moderated import Estimate

MIN_SEEDS = 5  # with fewer, no difference is claimed
EXACT = 1e-300  # the error of a difference of quantities that do not vary over seeds, such as bytes
MANY_DOF = 1e6  # Student's t is normal
PROBABLE = 0.85  # by calculation; three of four proposals come true, as what is undecided was chosen
MOST_SEEDS = 100  # that are proposed


@dataclass(frozen=True)
class Contrast:
    """An estimated difference of two means, left − right.

    Source:
        Welch (1947), The generalization of "Student's" problem when several different population variances
        are involved. Biometrika 34.
    """

    left: Estimate
    right: Estimate

    @cached_property
    def estimate(self) -> float:
        return self.left.mean - self.right.mean

    @cached_property
    def standard_error(self) -> float:
        """The standard error of the estimate, above 0."""
        errors = sum(each.squared_error + each.between for each in (self.left, self.right))
        left, right = self.left.shifted, self.right.shifted
        in_common = sum(float(left[fit] @ right[fit]) for fit in left.keys() & right.keys())
        return sqrt(max(0.0, errors - 2 * in_common)) or EXACT

    @cached_property
    def dof(self) -> float:
        """Degrees of freedom of Student's t."""
        parts = sum(each.squared_error**2 / each.dof for each in (self.left, self.right) if each.variance)
        return min(MANY_DOF, self.standard_error**4 / parts) if parts else MANY_DOF

    @property
    def shared(self) -> float:
        """The share of the error that comes from the right-hand mean, 0 … 1.

        Differences from one reference have it in common.
        """
        return min(1.0, sqrt(self.right.squared_error + self.right.between) / self.standard_error)

    @property
    def between(self) -> float:
        """The variance of the estimate that no number of seeds makes smaller."""
        return self.left.between + self.right.between

    @property
    def t(self) -> float:
        return self.estimate / self.standard_error

    @property
    def swapped(self) -> Contrast:
        """Right minus left."""
        return Contrast(self.right, self.left)

    @cached_property
    def p(self) -> float:
        """The two-sided p-value, uncorrected."""
        return float(2 * stdtr(self.dof, -abs(self.t)))


def critical_t(level: float, dof: float) -> float:
    """The |t| that one comparison exceeds with the probability `level` if there is no difference."""
    return float(-stdtrit(dof, level / 2))


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
