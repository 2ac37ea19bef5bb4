"""Find a run's processes on this machine, and wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


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


def wait_until(condition: Callable[[], Any], timeout_s: float = 120) -> Any:
    """Poll `condition` until it is true; returns its value, and fails the test after `timeout_s`.

    The default only ends a test that hangs: a start that takes 5 s can take 60 s on a loaded machine.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"condition not met within {timeout_s:g} s"
        time.sleep(0.05)
    return value
