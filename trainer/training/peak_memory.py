"""The most memory that this process has held, as the operating system counts it."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

PER_MIB = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, in KiB elsewhere


def restart_peak_memory() -> None:
    """From now on count anew. Where the system cannot (macOS) it goes on from the process's start."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # see proc(5)


def peak_memory_mb() -> float:
    """The largest resident set in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PER_MIB
