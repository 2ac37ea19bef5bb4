"""Corrections for several comparisons that are made together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy.special import chdtri, ndtr, stdtr

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
    def level(self) -> float:
        """The level at which it was decided, of this comparison alone."""
        return 2 * float(stdtr(self.contrast.dof, -self.critical))

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
    share, remaining, failed, adjusted = level, len(contrasts), False, 0.0
    for index in sorted(range(len(contrasts)), key=lambda index: contrasts[index].p):
        contrast = contrasts[index]
        adjusted = min(1.0, max(adjusted, remaining * contrast.p))
        share = share if failed else level / remaining
        failed = failed or contrast.p >= share
        critical = partial(critical_t, share, contrast.dof)
        decisions[index] = Decision(contrast, not failed, partial(float, adjusted), critical)
        remaining -= 1
    return [decisions[index] for index in range(len(contrasts))]


def benjamini_hochberg(
    contrasts: Sequence[Contrast], level: float, chosen_from: Sequence[int] | None = None
) -> list[Decision]:
    """Decide so many that of those decided, on average at most the share `level` is wrong.

    If R of m comparisons are decided, their p-values are at most R · level / m. Intervals have that level,
    so that of the intervals of what is decided, too, at most the share `level` misses the difference.

    Args:
        chosen_from: a comparison was chosen as the largest of so many, for which its p-value is corrected.

    Source:
        Benjamini, Hochberg (1995), Controlling the false discovery rate. J. R. Stat. Soc. B 57.
        Benjamini, Yekutieli (2005), False discovery rate–adjusted multiple confidence intervals for
        selected parameters. JASA 100.
    """
    if not contrasts:
        return []
    factors = np.array(chosen_from if chosen_from is not None else [1] * len(contrasts))
    values = np.array([contrast.p for contrast in contrasts]) * factors
    order = np.argsort(values, kind="stable")
    ranks = np.arange(1, len(values) + 1)
    below = np.flatnonzero(values[order] < level * ranks / len(values))
    decided = int(below[-1]) + 1 if len(below) else 0
    share = level * max(decided, 1) / len(values)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum.accumulate((values[order] * len(values) / ranks)[::-1])[::-1]
    return [
        Decision(
            contrast,
            bool(value < share),
            partial(float, min(1.0, corrected)),
            partial(critical_t, share / factor, contrast.dof),
        )
        for contrast, value, corrected, factor in zip(contrasts, values, adjusted, factors, strict=True)
    ]


def dunnett(contrasts: Sequence[Contrast], level: float) -> list[Decision]:
    """Dunnett's comparisons with one reference, for unequal variances.

    The error of the reference is common to all differences, so that the largest of their t values is
    smaller than that of as many independent ones. scipy.stats.dunnett assumes that all groups have one
    variance; those of strategies differ tenfold. Each comparison therefore has its own t, as of Welch.

    Args:
        contrasts: differences from the same reference, which is on their right-hand side.
        level: the probability of any wrong decision in the family.

    Source:
        Dunnett (1955), A multiple comparison procedure for comparing several treatments with a control.
        JASA 50. Hasler, Hothorn (2008), Multiple contrast tests in the presence of heteroscedasticity.
        Biometrical Journal 50, Sec. 2.
    """
    shared = _shared(contrasts)
    decisions = []
    for contrast in contrasts:
        p = partial(_tail, abs(contrast.t), contrast.dof, shared)
        # The correction only raises p-values.
        decided = contrast.p < level and p() < level
        decisions.append(Decision(contrast, decided, p, partial(_critical, level, contrast.dof, shared)))
    return decisions


def is_extreme(contrasts: Sequence[Contrast], level: float, smallest: bool) -> bool:
    """Whether one mean is shown to be smaller, or larger, than all others.

    Which one is measured smallest is chosen by the same data: the bound is that of the largest difference
    from the one that really is the smallest.

    Args:
        contrasts: each other mean minus that one.
        level: the probability of a wrong answer.
        smallest: otherwise, the largest.

    Source:
        Hsu (1984), Constrained simultaneous confidence intervals for multiple comparisons with the best.
        Annals of Statistics 12.
    """
    shared, sign = _shared(contrasts), 1 if smallest else -1
    return all(
        sign * each.t > 0 and _tail(sign * each.t, each.dof, shared, one_sided=True) < level
        for each in contrasts
    )


def _shared(contrasts: Sequence[Contrast]) -> np.ndarray:
    """Less in common than almost all is cautious, and smooth enough for the quadrature."""
    return np.minimum([contrast.shared for contrast in contrasts], 0.95)


def _critical(level: float, dof: float, shared: np.ndarray) -> float:
    """The bound that the largest |T_i| exceeds with the probability `level`."""
    from scipy.optimize import brentq  # slow to load, and most reports on one seed do not need it

    # Between that of one comparison and Bonferroni's, give or take the error of the quadrature.
    low, high = critical_t(level, dof) * 0.99, critical_t(level / len(shared), dof) * 1.01
    return float(brentq(lambda bound: _tail(bound, dof, shared) - level, low, high, xtol=1e-7))


def _tail(bound: float, dof: float, shared: np.ndarray, one_sided: bool = False) -> float:
    """P(max |T_i| > bound), where T_i = (shared_i · Z_0 + √(1 − shared_i²) · Z_i) / S.

    Z are standard normal, S is √(χ² / dof): a multivariate t with correlations shared_i · shared_j.
    one_sided: P(max T_i > bound).
    """
    (nodes, weights), _ = _nodes()
    scales, densities = _scales(dof)
    centre = np.outer(shared, nodes)[:, None, :]
    rest = np.sqrt(1 - shared**2)[:, None, None]
    reach = (bound * scales)[None, :, None]
    inside = ndtr((centre + reach) / rest)
    if not one_sided:
        inside = inside - ndtr((centre - reach) / rest)
    # Rounding may exceed 1.
    return max(0.0, float(1 - densities @ inside.prod(axis=0) @ weights / weights.sum()))


@lru_cache
def _nodes() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Values of Z_0 and their weights; nodes between −1 and 1 and theirs."""
    return np.polynomial.hermite_e.hermegauss(_NORMAL_NODES), np.polynomial.legendre.leggauss(_CHI_NODES)


@lru_cache
def _scales(dof: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of S = √(χ² / dof) and their probabilities, for a quadrature."""
    _, (nodes, weights) = _nodes()
    low, high = np.sqrt(chdtri(dof, [1 - 1e-12, 1e-12]) / dof)
    scales = low + (high - low) * (nodes + 1) / 2
    # The density of χ, without its constant factor.
    densities = weights * np.exp((dof - 1) * np.log(scales) - dof * (scales**2 - 1) / 2)
    return scales, densities / densities.sum()
