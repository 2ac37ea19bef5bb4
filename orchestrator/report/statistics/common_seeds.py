"""Seeds as blocks: what a seed adds to all configurations alike, such as an easy split of the data.

Configurations may have different seeds, as seeds are added only to what may be the choice. Means over
easy seeds are then larger than those over all seeds. So values are fitted as configuration + seed by least
squares, and the mean of a configuration is its own effect and the mean effect of all seeds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from statistics import fmean, median

import numpy as np
from scipy.special import fdtrc

from orchestrator.report.statistics.moderated import Sample

MIN_SEEDS = 3  # with fewer, a configuration says next to nothing about seeds
PAIRING_LEVEL = 0.01  # of this test
LEAST_DOF = 1 / 3  # of residuals, per seed beyond the first, with which they say more than the values
ROUNDING = 1e-9  # of eigenvalues


class SeedFit:
    """Values of configurations by seed, fitted as configuration + seed.

    Configurations that have no seed in common, not even by way of others, are fitted apart: each keeps the
    mean of its own seeds.
    """

    def __init__(self, samples: Mapping[Hashable, Sample]) -> None:
        """samples: the values of each configuration, on the scale of the comparison. None is empty."""
        self._samples = samples
        self._at = {name: at for at, name in enumerate(samples)}
        self._seeds = sorted({seed for sample in samples.values() for seed in sample})

    def has(self, name: Hashable) -> bool:
        """Whether a configuration is in the fit."""
        return name in self._at

    @cached_property
    def _present(self) -> np.ndarray:
        """1 where a configuration has a seed, else 0: shape (configurations, seeds)."""
        return np.array([[float(seed in each) for seed in self._seeds] for each in self._samples.values()])

    @cached_property
    def _within(self) -> np.ndarray:
        """The values without the means of their configurations."""
        means = [fmean(each.values()) for each in self._samples.values()]
        rows = [[each.get(seed, 0.0) for seed in self._seeds] for each in self._samples.values()]
        within: np.ndarray = self._present * (np.array(rows) - np.array(means)[:, None])
        return within

    @cached_property
    def balanced(self) -> bool:
        """Whether all have the same seeds, so that means over seeds compare as they are."""
        return bool(self._present.all())

    @cached_property
    def _plain(self) -> _Effects:
        return _Effects(self._present, self._within, np.ones(len(self._samples)))

    @cached_property
    def _weighted(self) -> _Effects:
        """What varies more than most says less about seeds. What varies less says no more than most."""
        known = self._plain.variances
        varies = known > 0
        weights = np.ones(len(known))
        if varies.any():
            weights[varies] = np.minimum(1, median(known[varies]) / known[varies])
        return _Effects(self._present, self._within, weights)

    @cached_property
    def pairing_helps(self) -> bool:
        """Whether the seed has an effect that all share: the F test of two-way analysis of variance.

        Pairing removes such an effect, and otherwise costs degrees of freedom. The sums of squares of
        seeds and residuals are independent, so that this choice does not bias what is tested with the
        residuals.
        """
        if len(self._samples) < 2 or len(self._seeds) < MIN_SEEDS:
            return False
        residual, dof, seeds = self._plain.squares, self._plain.dof, self._plain.rank
        whole = float((self._within**2).sum())
        if dof < ROUNDING or residual <= ROUNDING * whole:
            return whole > residual and dof >= ROUNDING
        p = float(fdtrc(seeds, dof, (whole - residual) / seeds / (residual / dof)))
        return p < PAIRING_LEVEL

    def shift(self, name: Hashable) -> float:
        """The mean on all seeds − the mean over the configuration's own: 0 if it has all of them."""
        at = self._at[name]
        return 0.0 if self._present[at].all() else float(self._weighted.shifts[at])

    def shift_errors(self, name: Hashable) -> np.ndarray:
        """How that shift depends on the errors of all values, each in standard deviations of its own.

        The sum of squares is its variance. It is independent of all means over own seeds, since it depends
        on differences within configurations alone.
        """
        at = self._at[name]
        return self._weighted.shift_errors(at) if self.shift(name) else np.zeros(self._present.size)

    def residuals(self, name: Hashable) -> tuple[Sample, float]:
        """What is left of a configuration's values without what seeds add to all, and the degrees of
        freedom per seed beyond the first.

        Their variance is that of a value of the configuration alone, so that the variances of two of them
        add up to that of their difference within a seed.
        """
        at, effects = self._at[name], self._plain if self.balanced else self._weighted
        own = [*self._samples[name]]
        per_seed = float(effects.dofs[at]) / (len(own) - 1) if len(own) > 1 else 1.0
        left = effects.residuals[at] / per_seed**0.5
        return {seed: float(left[self._seeds.index(seed)]) for seed in own}, per_seed


class _Effects:
    """The effects of seeds by weighted least squares.

    Attributes:
        rank: degrees of freedom of the effects.
        shifts: see `SeedFit.shift`.
        squares, dof: the sum of the squares that are left, and its degrees of freedom.
        residuals, dofs: what is left of each configuration. Where that has too few degrees of freedom,
            what its values differ from their mean.
        variances: of these; 0 where that is unknown.
    """

    def __init__(self, present: np.ndarray, within: np.ndarray, weights: np.ndarray) -> None:
        """weights: of configurations: 1 / the variance of a value, up to a factor."""
        self._present, self._weights = present, weights
        counts = present.sum(axis=1)
        self._own = present / counts[:, None]
        normal = np.diag(weights @ present) - (self._own * weights[:, None]).T @ present
        size, vectors = np.linalg.eigh(normal)
        kept = size > ROUNDING * max(1.0, float(size.max()))
        self.rank = int(kept.sum())
        self._inverse = (vectors[:, kept] / size[kept]) @ vectors[:, kept].T
        effects = self._inverse @ (weights @ within)
        self.shifts = -self._own @ effects
        self.residuals = within - present * (effects + self.shifts[:, None])
        of_own = np.einsum("cs,st,ct->c", self._own, self._inverse, present)
        self.dofs = counts - 1 - weights * (present @ np.diag(self._inverse) - of_own)
        self.squares, self.dof = float((self.residuals**2).sum()), float(self.dofs.sum())
        few = self.dofs < np.maximum(LEAST_DOF * (counts - 1) - ROUNDING, ROUNDING)
        self.residuals[few], self.dofs[few] = within[few], counts[few] - 1
        self.variances = (self.residuals**2).sum(axis=1) / np.maximum(self.dofs, ROUNDING)

    def shift_errors(self, at: int) -> np.ndarray:
        towards = -self._own[at] @ self._inverse
        within = self._present * (towards - (self._own @ towards)[:, None])
        errors: np.ndarray = (self._weights * np.sqrt(self.variances))[:, None] * within
        return errors.ravel()
