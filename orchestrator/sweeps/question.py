"""Comparisons that a sweep file asks for, which its report answers first."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.sweeps.lab import Measure


class Question(BaseModel):
    """Two configurations to compare. Each selection is of fields and values, as in `skip`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    measure: Measure = Field(description="what to compare them in")
    compare: dict[str, Any] = Field(description="the runs of one configuration")
    against: dict[str, Any] = Field(description="the runs of the configuration to compare it with")
