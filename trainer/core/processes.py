"""This process's tie to its parent, and the state of other processes. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Literal

import psutil

PR_SET_PDEATHSIG = 1  # of prctl(2)
MPIRUN: Literal["mpirun"] = "mpirun"
# PIDs of the processes of a run that are stopped by a signal: those of ranks, by rank, and that of mpirun.
Suspended = dict[int | Literal["mpirun"], int]


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the system send this process a signal when its parent ends, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def own_streams() -> tuple[int, int]:
    """Descriptors of standard input and output, which this process keeps for itself.

    What it or its children print goes to standard error, and they read nothing.
    """
    source, sink = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return source, sink


def is_suspended(pid: int) -> bool:
    """Whether the process is stopped by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
