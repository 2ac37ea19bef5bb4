"""Differences that do not matter to the reader of a sweep's report."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import InputError

POINTS = r"^[0-9]{1,2}(\.[0-9]{1,3})?pt$"
PERCENT = r"^[0-9]{1,3}(\.[0-9]{1,3})?%$"


class Tolerances(BaseModel):
    """Tolerances as text, in the units of a sweep file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: Annotated[
        str, Field(pattern=POINTS, description="a difference of accuracies in points, as 0.5pt")
    ] = "1pt"
    time: Annotated[str, Field(pattern=PERCENT, description="a share of the shorter time, as 10%")] = "5%"

    @property
    def accuracy_share(self) -> float:
        """The tolerated difference of accuracies, 0 … 1."""
        return float(self.accuracy.removesuffix("pt")) / 100

    @property
    def time_share(self) -> float:
        """The tolerated share of the shorter time."""
        return float(self.time.removesuffix("%")) / 100


DEFAULT = Tolerances()


def parse_tolerances(text: str, default: Tolerances) -> Tolerances:
    """`accuracy=0.5pt,time=10%`, or one of the two; what is not given stays. Raises InputError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        pattern = {"accuracy": POINTS, "time": PERCENT}.get(name)
        if not equals or pattern is None or name in found or not re.fullmatch(pattern, value):
            raise InputError(
                f"--tolerance {text}: {part.strip()!r} is not one of accuracy=POINTSpt and time=PERCENT%, "
                "each at most once, e.g. accuracy=0.5pt,time=10%"
            )
        found[name] = value
    return default.model_copy(update=found)
