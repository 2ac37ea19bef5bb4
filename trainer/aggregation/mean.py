"""Mean: the weighted mean, which a single Byzantine vector can move anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.aggregation.base import Aggregation, Total, whole

if TYPE_CHECKING:
    from torch import Tensor


class MeanAggregation(Aggregation):
    """Take the mean, Σ n_i x_i / Σ n_i. f = 0.

    A strategy takes it in an exchange of its own, such as an all-reduce.
    """

    def tolerated(self, vectors: int) -> int | None:
        return None

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        return (weights[:, None] * rows).sum(dim=0) / weights.sum()
