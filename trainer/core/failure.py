"""How a component breaks a law of its kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """What a law expects, and what it got instead; as text, why a component cannot be loaded."""

    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.got}; expected: {self.expected}"
