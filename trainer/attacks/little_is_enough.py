"""A little is enough: a vector that is wrong, within the spread of the honest ones."""

from __future__ import annotations

from math import floor, inf
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.attacks.base import Attack, Knowledge

if TYPE_CHECKING:
    from torch import Tensor


class LittleIsEnough(Attack):
    """Send μ − z σ: for small z, within the spread of the honest vectors (Baruch et al. 2019).

    μ and σ are mean and standard deviation of each coordinate over the honest vectors. All Byzantine ranks
    send the same vector. With z = null it is that of the paper: of n vectors m are Byzantine, and they need
    s honest ones on their side for a majority:

        s = ⌊n/2 + 1⌋ − m        z = Φ⁻¹((n − m − s) / (n − m))

    The paper's attackers estimate μ and σ from the vectors that they would send if they were honest. Here
    they know those of the honest ranks.

    Source: Baruch et al. 2019, "A Little Is Enough: Circumventing Defenses for Distributed Learning",
    the attack that prevents convergence.
    """

    knows_honest: ClassVar[bool] = True

    z: float | None = Field(
        None, gt=0, le=1000, description="standard deviations from the mean; null: those of the paper"
    )

    @property
    def counts_vectors(self) -> bool:
        return self.z is None

    def validation_error(self, vectors: int, byzantine: int) -> str | None:
        z = self.deviations(vectors, byzantine)
        if 0 < z < inf:
            return None
        return (
            f"z is null, and {z:.2g} by the paper's formula, with {byzantine} Byzantine of {vectors} "
            "vectors; allowed: another z, or a number of nodes that makes it positive and finite"
        )

    def deviations(self, vectors: int, byzantine: int) -> float:
        """z: the number of standard deviations from the mean."""
        if self.z is not None:
            return self.z
        honest = vectors - byzantine
        supporters = floor(vectors / 2 + 1) - byzantine
        share = (honest - supporters) / honest
        if 0 < share < 1:
            return NormalDist().inv_cdf(share)
        return inf if share >= 1 else -inf

    def vector(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        mean, std = knowledge.mean, knowledge.std
        if mean is None or std is None:
            return own
        return mean - self.deviations(knowledge.vectors, knowledge.byzantine) * std
