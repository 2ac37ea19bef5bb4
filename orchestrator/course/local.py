"""Sandboxes for submissions that are processes of this machine, for code that you trust."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.sandbox.base import Limits
from orchestrator.sandbox.local import LocalSandbox

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def local_sandbox(directory: Path, limits: Limits, prints: bool = False) -> LocalSandbox:
    """A process for one submission, limited as the kernel limits processes. prints: show its output."""
    return LocalSandbox(
        ["trainer.course", str(directory.resolve()), _limits_of(limits)], ONE_THREAD, prints
    )


def _limits_of(limits: Limits) -> str:
    """The limits as `trainer.course` reads them."""
    found = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.scratch_mb * 2**20}
    if sys.platform == "linux":  # macOS refuses or ignores these
        found["RLIMIT_AS"] = limits.memory_mb * 2**20
        found["RLIMIT_NPROC"] = _threads_of_user() + limits.processes
    return json.dumps(found)


def _threads_of_user() -> int:
    """What the kernel counts for RLIMIT_NPROC: threads of all processes of the user. It limits no root."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.num_threads() if process.uids().real == user else 0
    return count
