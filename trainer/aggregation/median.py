"""Median: the median of each coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.aggregation.base import Aggregation, Total, whole

if TYPE_CHECKING:
    from torch import Tensor


class Median(Aggregation):
    """Take the median of each coordinate (Yin et al. 2018). f < n/2.

    With equal weights it is the plain median: the middle value, or the mean of the two in the middle. With
    unequal weights it is the weighted median x, with at most half of the weight below x and at most half
    above x:

        Σ_{x_i < x} n_i ≤ ½ Σ n_i        Σ_{x_i > x} n_i ≤ ½ Σ n_i

    If two neighbouring values fulfil this, it is their mean. Weighted, it tolerates Byzantine vectors with
    less than half of the weight.

    Source: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    Alg. 1, Option I.
    """

    def tolerated(self, vectors: int) -> int | None:
        return (vectors - 1) // 2

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        import torch

        values, order = rows.sort(dim=0)
        below = weights[order].cumsum(dim=0, dtype=torch.float64)  # exact: weights are whole numbers
        half = below[-1:] / 2
        # Up to `lower` lies at least half of the weight, and up to `upper` more than half.
        lower = (below < half).sum(dim=0, keepdim=True)
        upper = (below <= half).sum(dim=0, keepdim=True)
        return ((values.gather(0, lower) + values.gather(0, upper)) / 2)[0]
