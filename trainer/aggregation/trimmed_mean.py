"""Trimmed mean: the mean of each coordinate without its extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.aggregation.base import Aggregation, ByzantineVectors, Total, whole

if TYPE_CHECKING:
    from torch import Tensor


class TrimmedMean(Aggregation):
    """Leave out the f smallest and f largest values of each coordinate (Yin et al. 2018). n ≥ 2f + 1.

    The mean of the others is weighted: Σ n_i x_i / Σ n_i over the n − 2f that are left. How many values
    are left out does not depend on weights. The paper's parameter is β = f/n.

    Source: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    Alg. 1, Option II.
    """

    f: ByzantineVectors = 1

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def tolerated(self, vectors: int) -> int | None:
        return self.f

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        # Stable: of equal values, the same are left out in every slice.
        values, order = rows.sort(dim=0, stable=True)
        kept = slice(self.f, len(rows) - self.f)
        shares = weights[order[kept]]
        return (shares * values[kept]).sum(dim=0) / shares.sum(dim=0)
