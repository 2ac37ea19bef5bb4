"""Random numbers by name: the run's seed plus what they are for, so that no component seeds itself."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np


@dataclass(frozen=True)
class RngFactory:
    """Independent random streams of one run.

    Equal arguments give equal streams on every rank and every transport, in any order of calls.
    """

    seed: int

    def _sequence(self, purpose: str, *place: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, crc32(purpose.encode()), len(place), *place])

    def rng(self, purpose: str, *place: int) -> np.random.Generator:
        """A numpy generator for `purpose` at `place` (e.g. rank and epoch, 0-based)."""
        return np.random.default_rng(self._sequence(purpose, *place))

    def number(self, purpose: str, *place: int) -> int:
        """A 63-bit seed for a library that wants one (torch)."""
        return int(self._sequence(purpose, *place).generate_state(1, np.uint64)[0] >> np.uint64(1))
