"""The state of other processes. Imports no torch."""

from __future__ import annotations

import psutil


def is_suspended(pid: int) -> bool:
    """Whether the process is stopped by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
