"""Bulyan: vectors that Krum selects, and of them in each coordinate those around the median."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.aggregation.base import Aggregation, ByzantineVectors, Total, whole
from trainer.aggregation.krum import krum_scores, squared_distances

if TYPE_CHECKING:
    from torch import Tensor


class Bulyan(Aggregation):
    """Select with `krum`, then take what is close to the median (El Mhamdi et al. 2018). n ≥ 4f + 3.

    1. Krum selects a vector θ = n − 2f times, each time from those that are left.
    2. In each coordinate the result is the mean of the β = θ − 2f selected values that are closest to the
       median of the selected ones.

    A vector that is close to the others can differ much from them in one coordinate, which step 2 prevents.
    The median is a selected value, the lower one of two. In its last calls Krum has fewer than 2f + 3
    vectors, and scores them by at least the nearest one. Weights have no influence.

    Source: El Mhamdi et al. 2018, "The Hidden Vulnerability of Distributed Learning in Byzantium", Bulyan
    with Krum.
    """

    breaks_ties: ClassVar[bool] = True

    f: ByzantineVectors = 1

    @property
    def least(self) -> int:
        return 4 * self.f + 3

    def tolerated(self, vectors: int) -> int | None:
        return self.f

    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        distances = squared_distances(rows, total)
        theta = len(rows) - 2 * self.f
        left = [*range(len(rows))]
        while len(left) > len(rows) - theta:
            scores = krum_scores(distances[left][:, left], self.f)
            del left[int(scores.argmin())]
        selected = rows[[number for number in range(len(rows)) if number not in left]]
        median = selected.median(dim=0).values
        closest = (selected - median).abs().sort(dim=0, stable=True).indices[: theta - 2 * self.f]
        return selected.gather(0, closest).mean(dim=0)
