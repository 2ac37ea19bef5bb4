"""Multi-Krum: the mean of the vectors with the best scores of Krum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.aggregation.base import Aggregation, ByzantineVectors, Total, whole
from trainer.aggregation.krum import krum_scores, squared_distances

if TYPE_CHECKING:
    from torch import Tensor


class MultiKrum(Aggregation):
    """Take the mean of the m vectors with the best scores of `krum` (Blanchard et al. 2017). n ≥ 2f + 3.

    n ≥ 2f + 3 as for `krum`, and m ≤ n − f − 2, so that some more vectors than the Byzantine ones are left
    out. With m = 1 it is `krum`. The scores do not depend on weights; the mean is weighted.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    Multi-Krum.
    """

    breaks_ties: ClassVar[bool] = True

    f: ByzantineVectors = 1
    m: int | None = Field(None, ge=1, le=1024, description="vectors in the mean; null: n − f − 2")

    @property
    def least(self) -> int:
        return max(2 * self.f + 3, (self.m or 1) + self.f + 2)

    def tolerated(self, vectors: int) -> int | None:
        return self.f

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        scores = krum_scores(squared_distances(rows, total), self.f)
        chosen = scores.sort(stable=True).indices[: self.m or len(rows) - self.f - 2]
        shares = weights[chosen, None]
        return (shares * rows[chosen]).sum(dim=0) / shares.sum()
