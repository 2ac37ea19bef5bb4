"""Clean a warm container between two runs, so that a run finds nothing of the one before it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

from trainer.cluster.commands import HOME
from trainer.cluster.rank_assignment import AssignmentError

WRITABLE = (HOME, Path("/tmp"), Path("/dev/shm"))  # all that a node can write to
INIT = 1
TRIES = 20  # processes may fork while they are being killed
KILL_S = 0.5


def remove_traces(keep: Collection[int]) -> None:
    """Kill all processes of the container but its init and these PIDs, and empty what they could write to.

    Raises AssignmentError if a process cannot be killed.
    """
    for _ in range(TRIES):
        left = _descendants(keep)
        if not left:
            break
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=KILL_S)
    else:
        names = ", ".join(str(process.pid) for process in left)
        raise AssignmentError(f"processes of the last run cannot be killed: {names}")
    for directory in WRITABLE:
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _descendants(keep: Collection[int]) -> list[psutil.Process]:
    """Live descendants of init. The engine's health checks are none."""
    return [
        process
        for process in psutil.Process(INIT).children(recursive=True)
        if process.pid not in keep and _is_alive(process)
    ]


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
