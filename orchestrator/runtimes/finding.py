"""A line of `doctor`: one check of this machine and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One check: its subject, status and meaning. required: no sweep runs without it."""

    subject: str
    status: Status
    detail: str
    required: bool = False
