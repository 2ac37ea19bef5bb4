"""The interface of an attack: what a Byzantine node trains on, and what it sends to an aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainer.core.registry import Component

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows in an aggregation.

    Attributes:
        vectors: how many ranks take part.
        byzantine: how many of them are Byzantine.
        rng: random numbers of this rank and step.
        mean, std: of each coordinate over the vectors of the honest ranks, shape (n,); None unless the
            attack declares `knows_honest`.
    """

    vectors: int
    byzantine: int
    rng: np.random.Generator
    mean: Tensor | None = None
    std: Tensor | None = None


class Attack(Component):
    """What Byzantine nodes do.

    A vector is a gradient, or the change of the weights since the round began, BatchNorm statistics
    included.
    """

    # It is computed from the vectors of the honest ranks.
    knows_honest: ClassVar[bool] = False
    # It changes labels, so the targets must be classes.
    needs_classes: ClassVar[bool] = False

    @property
    def counts_vectors(self) -> bool:
        """Whether it depends on the number of vectors in an aggregation."""
        return False

    def validation_error(self, vectors: int, byzantine: int) -> str | None:
        """Return why so many Byzantine ones of so many vectors do not attack like this, or None."""
        return None

    def vector(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        """What a Byzantine rank sends in place of its own vector: float32, shape (n,)."""
        return own

    def targets(self, targets: Tensor, classes: int) -> Tensor:
        """The classes on which a Byzantine rank trains in place of those of its samples, int64."""
        return targets
