"""Labels of the processes and containers that this orchestrator starts, and processes by their label."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from trainer.core.whole_number import MAX_PID, whole_number

# Set for all processes of this orchestrator: its PID, and the rest of its identity.
LABEL, SINCE = "SHARDYARD_ORCHESTRATOR", "SHARDYARD_ORCHESTRATOR_SINCE"
WATCHED = "SHARDYARD_PARENT_PID"  # the process that ranks end with, unless that is their agent


def identity(pid: int | None = None) -> str:
    """Identifies a process even if its PID is reused: "1234 86400/9f0c… host/4f1d…/pid:[4026531836]".

    Args:
        pid: the PID of a process in the same namespace; default: this process.
    """
    number = os.getpid() if pid is None else pid
    return f"{number} {_since(number)} {_namespace()}"


def is_gone(label: str) -> bool:
    """Whether the orchestrator with this label has ended; False if this process cannot know."""
    number, _, rest = label.partition(" ")
    since, _, namespace = rest.partition(" ")
    pid = whole_number(number, MAX_PID)
    if pid is None or namespace != _namespace():
        return False  # its PID means another process here
    try:
        return _since(pid) != since or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, OSError):
        return True


def own_label() -> dict[str, str]:
    """The variables that label all processes of this orchestrator, with which they end."""
    pid, _, since = identity().partition(" ")
    return {LABEL: pid, SINCE: since, WATCHED: pid}


def label_of(environment: Mapping[str, str]) -> str:
    """The label in the environment of a process."""
    return f"{environment[LABEL]} {environment.get(SINCE, '')}"


def labelled(wanted: Mapping[str, str] | None = None) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    """Processes with the label, and their environments. wanted: variables that they must have, too."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue  # ended, or another user's
        required = (wanted or {}).items()
        pid = whole_number(environment.get(LABEL, ""), MAX_PID)
        if pid is not None and all(environment.get(k) == v for k, v in required):
            yield process, environment


def _since(pid: int) -> str:
    """Start time of a process: ticks since boot, which do not depend on the system clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return f"{psutil.Process(pid).create_time():.2f}"
    # The command's name is in parentheses and may contain any bytes; the 22nd field is the 20th after it.
    ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    return f"{ticks.decode()}/{boot}"


def _namespace() -> str:
    """Where PIDs mean the same processes: a machine, and on it a namespace."""
    machine = socket.gethostname()  # of several login nodes, each sees all jobs of a Slurm cluster
    with suppress(OSError):
        machine += "/" + Path("/etc/machine-id").read_text().strip()
    try:
        return f"{machine}/{os.readlink('/proc/self/ns/pid')}"  # in a container, numbers mean others
    except OSError:
        return machine
