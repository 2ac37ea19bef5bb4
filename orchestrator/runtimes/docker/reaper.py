"""Removes containers, networks and volumes by label: after a run, and after an orchestrator was killed.

An orchestrator that gets SIGKILL cannot clean up. A small process does so for it: it reads from a pipe, and
when the pipe closes without a final message, it removes everything with the orchestrator's label.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from orchestrator.identity import is_gone
from orchestrator.runtimes.docker.engine import Engine, EngineError, reach
from orchestrator.shipped import IMPORT_ROOT

LABEL = "shardyard.orchestrator"
PROJECT_LABEL = "com.docker.compose.project"
REMOVE_S = 30.0
PAUSE_S = 0.05
EXIT_MESSAGE = b"exit"


class Reaper:
    """Handle of the process that cleans up if this one is killed. It ends with this handle."""

    def __init__(self, label: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.runtimes.docker.reaper", label],
            cwd=IMPORT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # does not get the terminal's Ctrl-C and SIGHUP
        )
        finalize(self, _dismiss, process)


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """Tell the process to exit without removing anything: runs have cleaned up after themselves."""
    process.communicate(EXIT_MESSAGE)


def remove_project(engine: Engine, project: str) -> int:
    """Remove a compose project's containers, networks and volumes. Returns their number."""
    return _remove(engine, f"{PROJECT_LABEL}={project}", lambda labels: True)


def remove_orphans(engine: Engine) -> int:
    """Remove everything that orchestrators which no longer run have started. Returns its number."""
    return _remove(engine, LABEL, lambda labels: is_gone(labels.get(LABEL, "")))


def remove_of_orchestrator(engine: Engine, orchestrator: str) -> int:
    """Remove everything that one orchestrator has started. Returns its number."""
    return _remove(engine, f"{LABEL}={orchestrator}", lambda labels: True)


def _remove(engine: Engine, label: str, wanted: Callable[[dict[str, str]], bool]) -> int:
    """Remove containers first: networks and volumes cannot be removed while one uses them.

    Raises EngineError if anything is left.
    """
    count = 0
    deadline = time.monotonic() + REMOVE_S
    while left := [each for each in _labelled(engine, label) if wanted(_labels(each))]:
        if time.monotonic() > deadline:
            raise EngineError(f"{len(left)} containers, networks or volumes cannot be removed")
        for each in left:
            # Another process may remove it at the same moment; else the next pass finds it again.
            with suppress(Exception):
                _remove_one(each)
                count += 1
        time.sleep(PAUSE_S)  # the engine still lists what it is removing
    return count


def _remove_one(thing: Any) -> None:
    if hasattr(thing, "kill"):
        thing.remove(force=True, v=True)
    else:
        thing.remove()


def _labels(thing: Any) -> dict[str, str]:
    attributes = thing.attrs
    return dict(attributes.get("Labels") or attributes.get("Config", {}).get("Labels") or {})


def _labelled(engine: Engine, label: str) -> list[Any]:
    client = engine.client
    filters: dict[str, str | list[str] | bool] = {"label": label}
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    networks, volumes = client.networks.list(filters=filters), client.volumes.list(filters=filters)
    return [*containers, *networks, *volumes]


def main(orchestrator: str) -> None:
    """Wait until the orchestrator has ended. If it was killed, remove everything that it started."""
    if sys.stdin.buffer.read() == EXIT_MESSAGE:
        return
    with suppress(EngineError):
        remove_of_orchestrator(reach(), orchestrator)


if __name__ == "__main__":
    main(sys.argv[1])
