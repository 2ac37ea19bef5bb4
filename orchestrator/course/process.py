"""The process that runs a submission: what it may have, in a container and on this machine."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from pwd import getpwnam

import psutil

from orchestrator.sandbox.base import Limits, Program

SUBMISSION = "/submission"  # in a container
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def contained(directory: Path, limits: Limits) -> Program:
    """A container, which can read nothing but the submission."""
    return Program(
        ["trainer.course", SUBMISSION], ONE_THREAD, limits, readable={directory.resolve(): SUBMISSION}
    )


def local(directory: Path, limits: Limits, prints: bool = False, user: str = "") -> Program:
    """A process of this machine, limited as the kernel limits processes.

    prints: show its output. user: it has the rights of this user; empty: those of this process.
    """
    found = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.scratch_mb * 2**20}
    if sys.platform == "linux":  # macOS refuses or ignores these
        found["RLIMIT_AS"] = limits.memory_mb * 2**20
        owner = getpwnam(user).pw_uid if user else os.getuid()
        found["RLIMIT_NPROC"] = _threads_of(owner) + limits.processes
    module = ["trainer.course", str(directory.resolve()), json.dumps(found)]
    return Program(module, ONE_THREAD, limits, readable={}, prints=prints, user=user)


def _threads_of(user: int) -> int:
    """What the kernel counts for RLIMIT_NPROC: threads of all processes of the user. It limits no root."""
    count = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.num_threads() if process.uids().real == user else 0
    return count
