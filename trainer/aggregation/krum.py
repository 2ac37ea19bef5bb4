"""Krum: the vector that is closest to its nearest neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.aggregation.base import Aggregation, ByzantineVectors, Total, whole

if TYPE_CHECKING:
    from torch import Tensor


class Krum(Aggregation):
    """Take the vector that is closest to its n − f − 2 nearest (Blanchard et al. 2017). n ≥ 2f + 3.

    The score of vector i is the sum of squared distances to the n − f − 2 vectors j that are closest to it:

        s(i) = Σ_j ‖x_i − x_j‖²

    The vector with the smallest score is the result; of equal scores, the one of the lowest rank. Weights
    have no influence.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    Sec. 4.
    """

    breaks_ties: ClassVar[bool] = True

    f: ByzantineVectors = 1

    @property
    def least(self) -> int:
        return 2 * self.f + 3

    def tolerated(self, vectors: int) -> int | None:
        return self.f

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        return rows[krum_scores(squared_distances(rows, total), self.f).argmin()]


def squared_distances(rows: Tensor, total: Total) -> Tensor:
    """‖x_i − x_j‖² of all pairs of vectors, shape (n, n). Arguments are those of `combine`."""
    import torch

    # In float64, and without roots or products of vectors: equal distances are equal in every bit.
    squares = [(rows - row).square().sum(dim=1) for row in rows.double()]
    # Symmetric in every bit, unlike sums over slices: two vectors that are nearest to each other tie.
    above = total(torch.stack(squares).float()).triu(diagonal=1)
    return above + above.T


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """s(i) of each vector, float64 of shape (n,), from squared distances of shape (n, n)."""
    import torch

    nearest = max(len(distances) - f - 2, 1)
    # The smallest of a row is the 0 of the vector itself.
    return distances.sort(dim=1).values[:, 1 : nearest + 1].sum(dim=1, dtype=torch.float64)
