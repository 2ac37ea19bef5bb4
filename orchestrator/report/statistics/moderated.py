"""Means over few seeds, with variances that are each shrunk towards that of all configurations.

Three to five seeds say little about a variance: one that is estimated too small makes a difference look
certain. Most configurations of a sweep have similar variances, so each estimate is completed by what the
others say, as much as a few further seeds would: the more, the more similar they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, fsum, log
from statistics import fmean

import numpy as np
from scipy.special import chdtr, chdtri, gammaln, polygamma, psi

PRIOR_DOF = 8.0  # of the variance of all configurations, at most
LEAST_PRIOR_DOF = 0.5
# Variances do not complete each other if equal ones would differ as much with less than this probability.
# A level of 10 % finds 2 points fewer of the differences where spreads differ by 30 %.
UNEQUAL_LEVEL = 0.05
NODES = 400  # of the quadrature of `equal_variances`

Sample = Mapping[int, float]  # the value of each seed


@dataclass(frozen=True)
class Estimate:
    """The mean of a quantity over seeds, on the scale of the comparison.

    shifted: errors of what was added to the mean because others have other seeds, by the fit that found it.
    Estimates have some of them in common.
    """

    mean: float
    variance: float  # of one value, moderated; 0 if the quantity does not vary
    seeds: int
    prior_dof: float  # degrees of freedom that other configurations add to the variance
    own_dof: float = 1.0  # those of its own values, per seed beyond the first
    between: float = 0.0  # the variance of the mean that no number of seeds makes smaller
    shifted: Mapping[int, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def dof(self) -> float:
        """Degrees of freedom of the variance."""
        return self.prior_dof + self.own_dof * (self.seeds - 1)

    @property
    def squared_error(self) -> float:
        """The variance of the mean over seeds."""
        return self.variance / self.seeds + sum(float(each @ each) for each in self.shifted.values())


def variance(values: Sequence[float]) -> float:
    """Like statistics.variance, which computes with fractions and takes a hundred times as long."""
    mean = fmean(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def moderated(
    samples: Sequence[Sample], resolution: float = 0.0, own_dofs: Sequence[float] = ()
) -> list[Estimate]:
    """The estimates of configurations, each with at least two seeds.

    Args:
        resolution: the distance of two neighbouring values, such as 1 / images for an accuracy. Rounding
            to it has the variance resolution² / 12, below which no estimate of a variance falls: three
            equal accuracies do not prove that the fourth is equal, too.
        own_dofs: of each, see Estimate; 1 if they are not given.

    Source:
        Smyth (2004), Linear models and empirical Bayes methods for assessing differential expression in
        microarray experiments. Stat. Appl. Genet. Mol. Biol. 3, Sec. 4 and 6.2.
    """
    own = [max(variance([*sample.values()]), resolution**2 / 12) for sample in samples]
    own_dofs = own_dofs or [1.0] * len(samples)
    dofs = [own_dof * (len(sample) - 1) for sample, own_dof in zip(samples, own_dofs, strict=True)]
    prior, prior_dof = _prior(own, dofs)
    return [
        Estimate(
            fmean(sample.values()),
            (prior_dof * prior + dof * each) / (prior_dof + dof),
            len(sample),
            prior_dof,
            own_dof,
        )
        for sample, each, dof, own_dof in zip(samples, own, dofs, own_dofs, strict=True)
    ]


def _prior(variances: Sequence[float], dofs: Sequence[float]) -> tuple[float, float]:
    """The variance of all configurations, and how many degrees of freedom it is worth."""
    known = [(each, dof) for each, dof in zip(variances, dofs, strict=True) if each > 0]
    if len(known) < 2 or equal_variances(*zip(*known, strict=True)) < UNEQUAL_LEVEL:
        return 0.0, 0.0
    # Of the logarithm of a variance, without what its own degrees of freedom add.
    logs = [log(each) - float(psi(dof / 2)) + log(dof / 2) for each, dof in known]
    left = variance(logs) - fmean(float(polygamma(1, dof / 2)) for _, dof in known)
    # Smyth's factor exp(psi(prior_dof / 2)) / (prior_dof / 2) is left out: it makes the variance smaller,
    # and then equals with equal variances differ in 6.5 % at a level of 5 %.
    return exp(fmean(logs)), _inverse_trigamma(left)


def equal_variances(variances: Sequence[float], dofs: Sequence[float]) -> float:
    """The probability that, of estimates of equal variances, largest / smallest is as large as here.

    Source:
        Hartley (1950), The maximum F-ratio as a short-cut test for heterogeneity of variance.
        Biometrika 37. Here, degrees of freedom may differ.
    """
    ratio, half = max(variances) / min(variances), np.array(dofs)[:, None] / 2
    low, high = (chdtri(half * 2, tail) / half / 2 for tail in (1 - 1e-9, 1e-9))
    smallest, step = np.linspace(log(low.min()), log(high.max()), NODES, retstep=True)
    at = np.exp(smallest)
    densities = np.exp(half * (np.log(half) + smallest - at) - gammaln(half))  # of the logarithms
    # Each other variance lies between the smallest one and its product with the ratio.
    between = chdtr(half * 2, half * 2 * ratio * at) - chdtr(half * 2, half * 2 * at) + 1e-300
    return 1 - float((densities / between * between.prod(axis=0)).sum() * step)


def _inverse_trigamma(value: float) -> float:
    """The degrees of freedom whose logarithms of variances vary by so much, within those of a prior."""
    if value <= float(polygamma(1, PRIOR_DOF / 2)):
        return PRIOR_DOF
    if value >= float(polygamma(1, LEAST_PRIOR_DOF / 2)):
        return LEAST_PRIOR_DOF
    from scipy.optimize import brentq  # slow to load, as in families.py

    return float(brentq(lambda dof: polygamma(1, dof / 2) - value, LEAST_PRIOR_DOF, PRIOR_DOF))
