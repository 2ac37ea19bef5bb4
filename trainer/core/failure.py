"""How a component breaks a law of its kind, and how a rank fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """What a law expects, and what it got instead; as text, why a component cannot be loaded."""

    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.got}; expected: {self.expected}"


class RankFailure(Exception):
    """A rank in another process has failed. The message is what `located` says there."""
