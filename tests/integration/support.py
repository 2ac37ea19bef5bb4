"""What integration tests share: a small run, the command line, and a look at what is running."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from orchestrator.results.records import RunResult
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

PROJECT = Path(__file__).resolve().parents[2]
# Small enough that a run is mostly start-up, large enough that training goes somewhere.
SMALL = {
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [16]},
    "lr": 0.1,
    "epochs": 2,
    "timeout_s": 60,
}


# Two quick runs around one that would take for ever.
LONG = """
name: long
base: {strategy: fault_injection, timeout_s: 300}
blocks:
  - base: {seed: 1}
  - base: {strategy: {name: fault_injection, work_s: 300}, transport: TRANSPORT, nodes: 2, seed: 1}
  - base: {seed: 2}
"""


class Silent:
    """A display that remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def begin(self, number: int, total: int, run: RunSpec) -> None: ...

    def events(self, events: Sequence[Event]) -> None:
        self.seen += events

    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


class Training(Silent):
    """Does something to a rank's process once all of them train."""

    def __init__(self, act: Callable[[int], None], rank: int, ranks: int = 3) -> None:
        super().__init__()
        self._act, self._rank, self._ranks = act, rank, ranks
        self.pid = 0
        self.at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while sum(event.kind == "train_start" for event in self.seen) < self._ranks:
            time.sleep(0.02)
        time.sleep(0.3)
        self.pid = next(e.fields["pid"] for e in self.seen if (e.kind, e.rank) == ("start", self._rank))
        self.at = time.time()
        self._act(self.pid)


def environment() -> dict[str, str]:
    """Ours without what a terminal or an outer run may have put there."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("SHARDYARD_")}
    return {**ours, "SHARDYARD_RUNTIME": "local"}  # also where an engine answers


def orchestrator(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "orchestrator", *map(str, arguments)]


def call(*arguments: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        orchestrator(*arguments),
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def started(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """A sweep that goes on while the test does something to it."""
    return subprocess.Popen(
        orchestrator("sweep", file, "--out", out, *options),
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def node_processes(directory: Path) -> list[psutil.Process]:
    """Processes of runs whose results lie below `directory`."""
    found = []
    for process in psutil.process_iter():
        try:
            run = process.environ().get("SHARDYARD_RUN", "")
            if run.startswith(str(directory.resolve())) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], Any], timeout_s: float = 30) -> Any:
    """What `condition` returns once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
