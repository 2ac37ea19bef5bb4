"""Random number generators by name, derived from the run's seed. Components never seed themselves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args
from zlib import crc32

import numpy as np

# Sources of randomness that a run's seed can vary one by one.
Source = Literal["init", "split", "order"]
SOURCES: tuple[Source, ...] = get_args(Source)
# The source that each random stream belongs to, by the purpose of the stream.
SOURCE_OF: dict[str, Source] = {
    "weights": "init",
    "compression": "init",
    "partition": "split",
    "distort": "split",
    "order": "order",
    "participation": "order",
    "entries": "order",
    "peers": "order",
    "dropout": "order",
    "augment": "order",
    "attack": "order",
}
FIXED_SEED = 0  # of the sources that the seed does not vary


@dataclass(frozen=True)
class RngFactory:
    """Independent random streams of one run.

    Equal arguments give equal streams on every rank and transport, in any order of calls.

    vary: the sources of randomness that the seed varies. The others are the same for every seed.
    """

    seed: int
    vary: Collection[Source] = SOURCES

    def _sequence(self, purpose: str, *index: int) -> np.random.SeedSequence:
        seed = self.seed if SOURCE_OF[purpose] in self.vary else FIXED_SEED
        return np.random.SeedSequence([seed, crc32(purpose.encode()), len(index), *index])

    def generator(self, purpose: str, *index: int) -> np.random.Generator:
        """A numpy generator for `purpose`, a key of SOURCE_OF; index: numbers such as rank and epoch."""
        return np.random.default_rng(self._sequence(purpose, *index))

    def torch_seed(self, purpose: str, *index: int) -> int:
        """A 63-bit seed for torch."""
        return int(self._sequence(purpose, *index).generate_state(1, np.uint64)[0] >> np.uint64(1))
