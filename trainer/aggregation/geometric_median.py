"""Geometric median: the point with the smallest sum of distances to all vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trainer.aggregation.base import Aggregation, Total, whole
from trainer.aggregation.median import Median

if TYPE_CHECKING:
    from torch import Tensor


class GeometricMedian(Aggregation):
    """Take the point v with the smallest Σ n_i ‖v − x_i‖ (Pillutla et al. 2022). f < n/2.

    The smoothed Weiszfeld algorithm takes R = `iterations` steps, which approximate it:

        β_i ← n_i / max(ν, ‖v − x_i‖)        v ← Σ β_i x_i / Σ β_i

    It starts at the `median` of each coordinate. A step never increases the sum of distances, so that v
    stays near the honest vectors for any R; from the mean it would need many steps to leave far Byzantine
    ones. Weighted, it tolerates Byzantine vectors with less than half of the weight.

    Source: Pillutla et al. 2022, "Robust Aggregation for Federated Learning", the smoothed Weiszfeld
    algorithm; Weiszfeld 1937, "Sur le point pour lequel la somme des distances de n points donnés est
    minimum".
    """

    iterations: int = Field(10, ge=1, le=1000, description="R: steps of the Weiszfeld algorithm")
    nu: float = Field(1e-6, gt=0, le=1, description="ν: the smallest distance in a denominator")

    def tolerated(self, vectors: int) -> int | None:
        return (vectors - 1) // 2

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        v = Median().combine(rows, weights)
        for _ in range(self.iterations):
            distances = total((rows - v).square().sum(dim=1)).sqrt()
            beta = weights / distances.clamp(min=self.nu)
            v = (beta[:, None] * rows).sum(dim=0) / beta.sum()
        return v
