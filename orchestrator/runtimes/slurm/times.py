"""Times as Slurm writes and reads them."""

from __future__ import annotations

import math
import re

# MINUTES[:SECONDS], HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]]
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def seconds_of(time: str) -> float:
    """The seconds of a time such as `30` (minutes), `1:00:00` or `2-12`; infinite without a limit."""
    match = TIME.fullmatch(time)
    if not match:  # UNLIMITED, infinite, Partition_Limit
        return math.inf
    days, first, *rest = match.groups()
    parts = [int(part) for part in (first, *rest) if part is not None]
    if days is None and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds
