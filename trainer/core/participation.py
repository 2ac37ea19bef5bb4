"""Which ranks take part in which round of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from math import ceil
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_ROUNDS = 10_000


class Participation(BaseModel):
    """The ranks that take part in each round: a share of them, drawn anew, or those of a schedule.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", Alg. 1: S_t, a random set of max(C·K, 1) of K clients; here a share that gives no rank is an
    error. By size: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Alg. 2, here without
    replacement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    fraction: float | None = Field(None, gt=0, le=1, description="share of the ranks in each round")
    by: Literal["uniform", "size"] = Field(
        "uniform", description="every rank is equally likely, or in proportion to its samples in epoch 1"
    )
    schedule: list[list[int]] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ROUNDS,
        description="the ranks of each round, repeated from the first after the last",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.fraction is None) == (self.schedule is None):
            raise PydanticCustomError("participation", "allowed: either fraction or schedule")
        if self.schedule is not None and self.by != "uniform":
            raise PydanticCustomError("participation", "by has no effect with schedule; leave it out")
        return self

    def error(self, ranks: int) -> str | None:
        """Why it does not fit a run of so many ranks, or None."""
        if self.fraction is not None and not self._drawn(ranks):
            least = ceil(5000 / ranks) / 10_000
            return f"fraction {self.fraction:g} of {ranks} ranks is no rank; allowed: at least {least:g}"
        for number, present in enumerate(self.schedule or ()):
            if not present:
                return f"schedule: no rank takes part in round {number}; allowed: at least one rank"
            if len({*present}) < len(present):
                return f"schedule: round {number} names a rank twice; allowed: each rank once"
            for rank in present:
                if not 0 <= rank < ranks:
                    return f"schedule: round {number} names rank {rank}; allowed: 0 to {ranks - 1}"
        return None

    def _drawn(self, ranks: int) -> int:
        # The decimal number that the file has: 0.145 of 100 ranks are 14.5, and the float product is below.
        share = Decimal(str(self.fraction or 0)) * ranks
        return int(share.quantize(Decimal(1), ROUND_HALF_UP))

    def fewest(self, ranks: int) -> int:
        """The fewest of so many ranks that take part in a round."""
        if self.schedule is None:
            return self._drawn(ranks)
        return min(len(present) for present in self.schedule)

    def most(self, ranks: int) -> int:
        """The most of so many ranks that take part in a round."""
        if self.schedule is None:
            return self._drawn(ranks)
        return max(len(present) for present in self.schedule)

    def draw(self, number: int, sizes: Sequence[int], rng: np.random.Generator) -> frozenset[int]:
        """The ranks of a round.

        Args:
            number: the number of the round, from 0.
            sizes: the samples of each rank.
            rng: the generator of this round.
        """
        if self.schedule is not None:
            return frozenset(self.schedule[number % len(self.schedule)])
        weights = np.array(sizes) / sum(sizes) if self.by == "size" else None
        drawn = rng.choice(len(sizes), self._drawn(len(sizes)), replace=False, p=weights)
        return frozenset(drawn.tolist())


# A parameter of strategies that have rounds.
Participants = Annotated[
    Participation | None,
    Field(
        description="ranks that take part in each round, as {fraction: 0.1}, with by: size, or "
        "{schedule: [[0, 1], [2]]}; the others take no steps and have weight 0 in its average; "
        "null: all"
    ),
]


class Rounds(BaseModel):
    """The rounds of a strategy in which not every rank takes part. steps: of a round; None: one round."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    participation: Participation
    steps: int | None = Field(ge=1)

    @classmethod
    def of(cls, participation: Participation | None, steps: int | None) -> Rounds | None:
        """None if every rank takes part in every round."""
        return None if participation is None else cls(participation=participation, steps=steps)


@dataclass(frozen=True)
class Round:
    """A round of training, by its number from 0, and the ranks that take part in it."""

    number: int
    ranks: frozenset[int]
