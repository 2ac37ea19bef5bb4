"""Random number generators by name, derived from the run's seed. Components never seed themselves."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np


@dataclass(frozen=True)
class RngFactory:
    """Independent random streams of one run.

    Equal arguments give equal streams on every rank and transport, in any order of calls.
    """

    seed: int

    def _sequence(self, purpose: str, *index: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, crc32(purpose.encode()), len(index), *index])

    def generator(self, purpose: str, *index: int) -> np.random.Generator:
        """A numpy generator for `purpose`; index: for example rank and epoch."""
        return np.random.default_rng(self._sequence(purpose, *index))

    def torch_seed(self, purpose: str, *index: int) -> int:
        """A 63-bit seed for torch."""
        return int(self._sequence(purpose, *index).generate_state(1, np.uint64)[0] >> np.uint64(1))
