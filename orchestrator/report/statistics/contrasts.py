"""The difference of two means over seeds: Welch's t, or paired by seed.

Ratios are differences of logarithms. Everything here is on the scale of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, sqrt
from statistics import fmean

import numpy as np
from scipy.special import fdtrc, stdtr, stdtrit

MIN_SEEDS = 3  # with fewer, a variance says next to nothing, and no difference is claimed
PAIRING_LEVEL = 0.01  # of the test for an effect of the seed

Sample = Mapping[int, float]  # the value of each seed


@dataclass(frozen=True)
class Contrast:
    """An estimated difference of two means.

    Attributes:
        estimate: the difference of the means.
        standard_error: of the estimate, above 0.
        dof: degrees of freedom of Student's t.
        least_dof: its lower bound, that of the smaller sample alone.
        shared: the share of `standard_error` that comes from the right-hand mean, 0 … 1. Differences from
            one reference have it in common.
        variances: of one value of each sample; if paired, of one difference, and 0.
    """

    estimate: float
    standard_error: float
    dof: float
    least_dof: float
    shared: float
    variances: tuple[float, float]

    @property
    def t(self) -> float:
        return self.estimate / self.standard_error

    @property
    def swapped(self) -> Contrast:
        """Right minus left."""
        own = sqrt(max(0.0, 1 - self.shared**2))
        return replace(self, estimate=-self.estimate, shared=own, variances=self.variances[::-1])

    @cached_property
    def p(self) -> float:
        """The two-sided p-value, uncorrected."""
        return float(2 * stdtr(self.dof, -abs(self.t)))


def critical_t(level: float, dof: float) -> float:
    """The |t| that one comparison exceeds with the probability `level` if there is no difference."""
    return float(-stdtrit(dof, level / 2))


def welch(left: Sample, right: Sample, resolution: float = 0.0) -> Contrast | None:
    """Welch's t for left − right. None if a side has fewer than MIN_SEEDS seeds.

    Args:
        resolution: the distance of two neighbouring values, such as 1 / images for an accuracy. Rounding
            to it has the variance resolution² / 12, below which no estimate of a variance falls: three
            equal accuracies do not prove that the fourth is equal, too.

    Source:
        Welch (1947), The generalization of "Student's" problem when several different population variances
        are involved. Biometrika 34.
    """
    sides = [list(side.values()) for side in (left, right)]
    if min(map(len, sides)) < MIN_SEEDS:
        return None
    variances = [max(variance(side), resolution**2 / 12) for side in sides]
    of_means = [each / len(side) for each, side in zip(variances, sides, strict=True)]
    estimate, squared = fmean(sides[0]) - fmean(sides[1]), sum(of_means)
    if squared == 0:
        return _exact(estimate)
    dof = squared**2 / sum(v**2 / (len(side) - 1) for v, side in zip(of_means, sides, strict=True))
    return Contrast(
        estimate,
        standard_error=sqrt(squared),
        dof=dof,
        least_dof=min(map(len, sides)) - 1,
        shared=sqrt(of_means[1] / squared),
        variances=(variances[0], variances[1]),
    )


def paired(left: Sample, right: Sample, resolution: float = 0.0) -> Contrast | None:
    """Student's t for the mean over common seeds of left − right. None for fewer than MIN_SEEDS."""
    differences = [left[seed] - right[seed] for seed in left if seed in right]
    if len(differences) < MIN_SEEDS:
        return None
    spread = max(variance(differences), 2 * resolution**2 / 12)
    estimate = fmean(differences)
    if spread == 0:
        return _exact(estimate)
    error, dof = sqrt(spread / len(differences)), len(differences) - 1
    return Contrast(estimate, error, dof, dof, shared=sqrt(0.5), variances=(spread, 0.0))


def variance(values: Sequence[float]) -> float:
    """As statistics.variance, which computes with fractions and takes a hundred times as long."""
    mean = fmean(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _exact(estimate: float) -> Contrast:
    """Of quantities that do not vary over seeds at all, such as bytes."""
    return Contrast(estimate, 1e-300, 1e6, 1e6, shared=0.0, variances=(0.0, 0.0))


def pairing_helps(samples: Sequence[Sample]) -> bool:
    """Whether the seed has an effect that all of these samples share: the F test of two-way analysis of
    variance, in which the seeds are blocks.

    Pairing removes such an effect, and otherwise costs half of the degrees of freedom. The sums of squares
    of blocks and residuals are independent, so that this choice does not bias the paired test.
    """
    seeds = set.intersection(*(set(sample) for sample in samples)) if samples else set()
    if len(samples) < 2 or len(seeds) < MIN_SEEDS or any(set(sample) != seeds for sample in samples):
        return False
    table = np.array([[sample[seed] for seed in sorted(seeds)] for sample in samples])
    groups, blocks = table.shape
    of_blocks = table.mean(axis=0)
    residuals = table - table.mean(axis=1, keepdims=True) - of_blocks + table.mean()
    residual = float((residuals**2).sum()) / ((groups - 1) * (blocks - 1))
    between = groups * float(np.var(of_blocks, ddof=1))
    if residual == 0:
        return bool(between > 0)
    p = float(fdtrc(blocks - 1, (groups - 1) * (blocks - 1), between / residual))
    return p < PAIRING_LEVEL
