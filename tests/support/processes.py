"""Find a run's processes on this machine and their network, and wait for a condition."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from orchestrator.runtimes.local.namespace import PrivateNetwork

# The start of a rank, which imports torch, takes so many times the start of a process that imports numpy.
RANK_START = 12


@cache
def private_network_missing() -> str | None:
    """Why local nodes cannot have a network of their own here, or None. Tests then let them share one."""
    network = PrivateNetwork()
    reason = network.unavailable_reason
    network.close()
    return reason


def node_processes(directory: Path) -> list[psutil.Process]:
    """Live processes of runs whose results are below `directory`."""
    found = []
    for process in psutil.process_iter():
        try:
            run = process.environ().get("SHARDYARD_RUN", "")
            if run.startswith(str(directory.resolve())) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def connections(pid: int) -> set[str]:
    """The TCP connections of a process: their inodes, as the process's own network namespace lists them."""
    tables = [Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    established = {f"socket:[{row[9]}]" for row in rows if row[3] == "01"}
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(descriptor))
    return found & established


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended. Its parent may not have waited for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # since the line above
        return True


def starts(number: float) -> float:
    """The whole seconds in which this machine, at this moment, starts so many ranks one after the other."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return float(ceil(number * RANK_START * (time.monotonic() - begin)))


def wait_until(condition: Callable[[], Any], timeout_s: float = 120, poll_s: float = 0.05) -> Any:
    """Poll `condition` until it is true; returns its value, and fails the test after `timeout_s`.

    The default only ends a test that hangs: a start that takes 5 s can take 60 s on a loaded machine.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"condition not met within {timeout_s:g} s"
        time.sleep(poll_s)
    return value
