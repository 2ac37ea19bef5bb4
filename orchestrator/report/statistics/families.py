"""Corrections for several comparisons that are made together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy import optimize
from scipy.special import chdtri, ndtr

from orchestrator.report.statistics.contrasts import Contrast, critical_t

_NORMAL_NODES = 32  # of the quadrature over the error of the reference
_CHI_NODES = 40  # and over the estimate of the standard error


@dataclass(frozen=True)
class Decision:
    """What a comparison comes to, corrected for the others of its family.

    Attributes:
        decided: whether the sign of the difference is claimed.
        find_p, find_critical: compute `p` and `critical`, which takes longer than the decision.
    """

    contrast: Contrast
    decided: bool
    find_p: Callable[[], float]
    find_critical: Callable[[], float]

    @cached_property
    def p(self) -> float:
        """The corrected p-value."""
        return self.find_p()

    @cached_property
    def critical(self) -> float:
        """The |t| that decides the comparison."""
        return self.find_critical()

    @property
    def low(self) -> float:
        """The lower bound of the difference, at the level at which this comparison was decided.

        The interval from `low` to `high` excludes 0 exactly if the comparison is decided.
        """
        return self.contrast.estimate - self.critical * self.contrast.standard_error

    @property
    def high(self) -> float:
        return self.contrast.estimate + self.critical * self.contrast.standard_error


Correction = Callable[[Sequence[Contrast], float], list[Decision]]


def holm(contrasts: Sequence[Contrast], level: float) -> list[Decision]:
    """Holm's step-down procedure: valid whatever the dependence between the comparisons.

    The smallest p-value is held against level / m, the next against level / (m − 1), and so on until one
    is not below. The comparisons from there on share the level of that one.

    Args:
        level: the probability of any wrong decision in the family.

    Source:
        Holm (1979), A simple sequentially rejective multiple test procedure. Scand. J. Statist. 6.
    """
    decisions: dict[int, Decision] = {}
    remaining, failed, adjusted = len(contrasts), False, 0.0
    for index in sorted(range(len(contrasts)), key=lambda index: contrasts[index].p):
        contrast = contrasts[index]
        adjusted = min(1.0, max(adjusted, remaining * contrast.p))
        share = level / remaining
        failed = failed or contrast.p >= share
        critical = partial(critical_t, share, contrast.dof)
        p = partial(float, adjusted)
        decisions[index] = Decision(contrast, not failed, p, critical)
        remaining -= 0 if failed else 1
    return [decisions[index] for index in range(len(contrasts))]


def dunnett(contrasts: Sequence[Contrast], level: float) -> list[Decision]:
    """Dunnett's comparisons with one reference, for unequal variances.

    The error of the reference is common to all differences, so that the largest of their t values is
    smaller than that of as many independent ones. scipy.stats.dunnett assumes that all groups have one
    variance; those of strategies differ tenfold. Each comparison therefore has its own t, as of Welch, with
    one degree of freedom less: with all of them, a wrong decision is made in 7 to 10 % of families at a
    level of 5 %, if 3 to 5 seeds have unequal variances.

    Args:
        contrasts: differences from the same reference, which is on their right-hand side.
        level: the probability of any wrong decision in the family.

    Source:
        Dunnett (1955), A multiple comparison procedure for comparing several treatments with a control.
        JASA 50. Hasler, Hothorn (2008), Multiple contrast tests in the presence of heteroscedasticity.
        Biometrical Journal 50, Sec. 2.
    """
    # Less in common than almost all is cautious, and smooth enough for the quadrature.
    shared = np.minimum([contrast.shared for contrast in contrasts], 0.95)
    decisions = []
    for contrast in contrasts:
        dof = max(contrast.least_dof, contrast.dof - 1)
        p = partial(_tail, abs(contrast.t), dof, shared)
        # The correction only raises p-values.
        decided = contrast.p < level and p() < level
        decisions.append(Decision(contrast, decided, p, partial(_critical, level, dof, shared)))
    return decisions


def _critical(level: float, dof: float, shared: np.ndarray) -> float:
    """The bound that the largest |T_i| exceeds with the probability `level`."""
    # Between that of one comparison and Bonferroni's, give or take the error of the quadrature.
    low, high = critical_t(level, dof) * 0.99, critical_t(level / len(shared), dof) * 1.01
    return float(optimize.brentq(lambda bound: _tail(bound, dof, shared) - level, low, high))


def _tail(bound: float, dof: float, shared: np.ndarray) -> float:
    """P(max |T_i| > bound), where T_i = (shared_i · Z_0 + √(1 − shared_i²) · Z_i) / S.

    Z are standard normal, S is √(χ² / dof): a multivariate t with correlations shared_i · shared_j.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NORMAL_NODES)
    scales, densities = _scales(dof)
    centre = np.outer(shared, nodes)[:, None, :]
    rest = np.sqrt(1 - shared**2)[:, None, None]
    reach = (bound * scales)[None, :, None]
    inside = ndtr((centre + reach) / rest) - ndtr((centre - reach) / rest)
    return float(1 - densities @ inside.prod(axis=0) @ weights / weights.sum())


@lru_cache
def _scales(dof: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of S = √(χ² / dof) and their probabilities, for a quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(_CHI_NODES)
    low, high = np.sqrt(chdtri(dof, [1 - 1e-12, 1e-12]) / dof)
    scales = low + (high - low) * (nodes + 1) / 2
    # The density of χ, without its constant factor.
    densities = weights * np.exp((dof - 1) * np.log(scales) - dof * (scales**2 - 1) / 2)
    return scales, densities / densities.sum()
