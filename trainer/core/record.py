"""The base of every record that goes to disk: written by a rank, read by the orchestrator, defined once."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen, checked record. An unknown, missing or mistyped field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
