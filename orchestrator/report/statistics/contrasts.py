"""The difference of two means over seeds, by Welch's t with moderated variances.

Ratios are differences of logarithms. Everything here is on the scale of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from scipy.special import stdtr, stdtrit

from orchestrator.report.statistics.moderated import Estimate

MIN_SEEDS = 5  # with fewer, no difference is claimed
EXACT = 1e-300  # the error of a difference of quantities that do not vary over seeds, such as bytes
MANY_DOF = 1e6  # Student's t is normal


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
