"""The interface of an aggregation: how the vectors of several ranks become one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Tensor

Total = Callable[["Tensor"], "Tensor"]

ByzantineVectors = Annotated[
    int, Field(ge=0, le=1024, description="f: Byzantine vectors that it tolerates")
]


def whole(tensor: Tensor) -> Tensor:
    """The `total` of rows that are whole vectors."""
    return tensor


class Aggregation(Component):
    """How the vectors of ranks, their weights or their gradients, become one.

    A vector is Byzantine if a rank may have put any values in its place. In the docstrings there are n
    vectors x_i with weights n_i, and f of them are Byzantine. Only the vectors of ranks that have trained
    on samples count. If fewer than `least` of them count, the aggregation changes nothing: the weights stay
    those of the last one, and a gradient is 0.
    """

    # Whether it orders vectors by sums over slices, so that equal sums must be equal in every bit.
    breaks_ties: ClassVar[bool] = False

    @property
    def least(self) -> int:
        """The fewest vectors that it combines."""
        return 1

    @abstractmethod
    def tolerated(self, vectors: int) -> int | None:
        """How many of so many vectors of equal weight may be Byzantine; None: it promises nothing."""

    @abstractmethod
    def combine(self, rows: Tensor, weights: Tensor, total: Total = whole) -> Tensor:
        """The vector that stands for all.

        Args:
            rows: the vectors that count, or the same slice of each: float32, shape (n, m).
            weights: their weights, > 0: float32, shape (n,).
            total: adds up a tensor over all slices of the vectors.

        Returns:
            Float32 of shape (m,).
        """
