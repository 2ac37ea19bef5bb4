"""Removing containers and networks by label: after a run, and after an orchestrator that was killed.

An orchestrator that is killed with SIGKILL cannot clean up. A small process of its own does: it reads
from a pipe, and when the other end is gone without a word, it removes what carries the label.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from orchestrator.runtimes.docker.engine import Engine, EngineError, reach
from orchestrator.runtimes.identity import is_gone
from orchestrator.shipped import IMPORT_ROOT

LABEL = "shardyard.orchestrator"
PROJECT_LABEL = "com.docker.compose.project"
REMOVE_S = 30.0
PAUSE_S = 0.05
ALL_IS_WELL = b"all is well"


class Reaper:
    """Watches over this process until it ends, however it ends, or until nobody needs the reaper."""

    def __init__(self, label: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.runtimes.docker.reaper", label],
            cwd=IMPORT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and the closing of a terminal are not for it
        )
        finalize(self, _dismiss, process)


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """In good order, runs have cleaned up after themselves, and others of this process may still run."""
    process.communicate(ALL_IS_WELL)


def remove_project(engine: Engine, project: str) -> int:
    """Remove a compose project's containers, networks and volumes, and see that none is left."""
    return _remove(engine, f"{PROJECT_LABEL}={project}", lambda labels: True)


def remove_orphans(engine: Engine) -> int:
    """Remove what orchestrators that are gone have started; how much it was."""
    return _remove(engine, LABEL, lambda labels: is_gone(labels.get(LABEL, "")))


def remove_owned(engine: Engine, owner: str) -> int:
    """Remove what one orchestrator has started."""
    return _remove(engine, f"{LABEL}={owner}", lambda labels: True)


def _remove(engine: Engine, label: str, wanted: Callable[[dict[str, str]], bool]) -> int:
    """Containers first: a network cannot go before them. Raises EngineError if something stays."""
    count = 0
    deadline = time.monotonic() + REMOVE_S
    while left := [each for each in _labelled(engine, label) if wanted(_labels(each))]:
        if time.monotonic() > deadline:
            raise EngineError(f"{len(left)} containers or networks cannot be removed: docker ps -a")
        for each in left:
            # Somebody else may remove it at the same moment; if nobody does, it is found again.
            with suppress(Exception):
                _remove_one(each)
                count += 1
        time.sleep(PAUSE_S)  # what is being removed is still listed for a moment
    return count


def _remove_one(thing: Any) -> None:
    if hasattr(thing, "kill"):
        thing.remove(force=True, v=True)
    else:
        thing.remove()


def _labels(thing: Any) -> dict[str, str]:
    return dict(thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {})


def _labelled(engine: Engine, label: str) -> list[Any]:
    client = engine.client
    filters: dict[str, str | list[str] | bool] = {"label": label}
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return [*containers, *client.networks.list(filters=filters), *client.volumes.list(filters=filters)]


def main(owner: str) -> None:
    """Wait for the orchestrator's end, then remove what it had started."""
    if sys.stdin.buffer.read() == ALL_IS_WELL:
        return
    with suppress(EngineError):
        remove_owned(reach(), owner)


if __name__ == "__main__":
    main(sys.argv[1])
