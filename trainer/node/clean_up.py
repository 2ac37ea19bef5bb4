"""Clean a warm container between two runs, so that a run finds nothing of the one before it.

What cannot be removed is named, and the orchestrator replaces the containers before the next run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from trainer.core import cgroup
from trainer.node.home import CONTAINER

QUEUES = Path("/dev/mqueue")  # POSIX message queues
WRITABLE = (CONTAINER.path, Path("/tmp"), Path("/dev/shm"), QUEUES)  # all that a node can write to
SYSTEM_V = Path("/proc/sysvipc")  # a list each of shared memory, semaphores and message queues
IPC_RMID = 0  # of shmctl(2), semctl(2) and msgctl(2)
INIT = 1
TRIES = 20  # processes may fork while they are being killed
KILL_S = 0.5
LOOK_S = 0.1  # between looks at the number of processes, which the engine's health checks change
SHARED_MB = 16.0  # of shared memory that an empty container may have

# What a process of the same user can change of another one.
Settings = Mapping[str, Any]


def settings(pids: Collection[int]) -> dict[int, Settings]:
    """The settings of the processes that stay between two runs: init, and these."""
    return {pid: _settings(pid) for pid in (INIT, *pids)}


def remove_traces(kept: Mapping[int, Settings], refuse_waiting: Callable[[], None]) -> str | None:
    """Remove what a run can leave in its container.

    Args:
        kept: processes that stay, by PID, and their settings before the run.
        refuse_waiting: lets the warm parent, if there is one, disconnect the clients that still wait for
            it. Raises OSError.

    Returns:
        What is left, or None.
    """
    try:
        _kill(kept)
        refuse_waiting()
        _kill(kept)
        for pid, before in kept.items():
            now = _settings(pid)
            if changed := [name for name in before if before[name] != now[name]]:
                return f"{changed[0]} of process {pid} was changed"
        _remove_system_v()
        for directory in WRITABLE:
            empty(directory)
    except (OSError, RecursionError, psutil.Error) as error:
        return str(error)
    shared_mb = cgroup.shared_memory_mb() or 0.0
    return f"{shared_mb:.0f} MiB of shared memory" if shared_mb > SHARED_MB else None


def _kill(keep: Collection[int]) -> None:
    """Kill all processes of the container but these. Raises ChildProcessError if one is left."""
    for _ in range(TRIES):
        unlisted = _unlisted()  # first: what starts later is listed
        if left := _descendants(keep):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=KILL_S)
        elif unlisted > 0:
            time.sleep(LOOK_S)
        else:
            return
    names = ", ".join(str(process.pid) for process in left) or "one that forks all the time"
    raise ChildProcessError(f"processes that cannot be killed: {names}")


def _descendants(keep: Collection[int]) -> list[psutil.Process]:
    """Live descendants of init. The engine's health checks are none."""
    return [
        process
        for process in psutil.Process(INIT).children(recursive=True)
        if process.pid not in keep and _is_alive(process)
    ]


def _is_alive(process: psutil.Process) -> bool:
    """A process whose first thread has ended is listed as a zombie although others may run."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def _unlisted() -> int:
    """Threads that the control group counts beyond those of the listed processes.

    A process that forks and ends all the time can be missing in every list, but not in the count.
    """
    count = cgroup.threads()
    if count is None:
        return 0
    return count - sum(_threads(pid) for pid in psutil.pids())


def _threads(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def _settings(pid: int) -> Settings:
    process = psutil.Process(pid)
    found: dict[str, Any] = {
        "priority": process.nice(),
        "I/O priority": process.ionice(),
        "scheduling policy": os.sched_getscheduler(pid),
        "CPU affinity": process.cpu_affinity(),
        "resource limits": Path(f"/proc/{pid}/limits").read_text(),
        "OOM score adjustment": Path(f"/proc/{pid}/oom_score_adj").read_text(),
    }
    if pid == os.getpid():  # ranks share its standard streams
        found["flags of the standard streams"] = [fcntl.fcntl(stream, fcntl.F_GETFL) for stream in range(3)]
    return found


def _remove_system_v() -> None:
    """Remove System V shared memory, semaphores and message queues. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("shm", "sem", "msg"):
        for identifier in _system_v(kind):
            getattr(libc, f"{kind}ctl")(identifier, IPC_RMID, IPC_RMID)  # the second one is semctl's
        if left := [*_system_v(kind)]:
            raise OSError(f"{len(left)} objects of System V {kind}")


def _system_v(kind: str) -> Iterator[int]:
    """The identifiers of all objects of this kind."""
    with suppress(FileNotFoundError):  # a kernel without System V objects
        for line in (SYSTEM_V / kind).read_text().splitlines()[1:]:
            yield int(line.split()[1])


def empty(directory: Path, *kept: Path) -> None:
    """Remove what is in a directory, but for these paths.

    Raises OSError, or RecursionError for a directory that is nested too deeply.
    """
    for path in {*directory.iterdir()} - {*kept}:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
