"""A small run, displays that record or disturb it, and a cache of finished runs."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_result
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from tests.support.processes import private_network_missing
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

# Dominated by start-up, but large enough to learn.
SMALL: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [16]},
    "lr": 0.1,
    "epochs": 2,
    "timeout_s": 120,
}

# A run that outlasts every test, between two quick ones: seeds are executed one after the other.
HANGING_SWEEP = """
name: hanging
base: {strategy: fault_injection, timeout_s: 300}
blocks:
  - base: {seed: 1}
  - base: {strategy: {name: fault_injection, work_s: 300}, transport: TRANSPORT, nodes: 2, seed: 2}
  - base: {seed: 3}
"""


class RecordingDisplay:
    """A display that records the events of a run."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def warm_up(self, run: RunSpec) -> None: ...

    def begin(self, number: int, total: int, run: RunSpec) -> None: ...

    def events(self, events: Sequence[Event]) -> None:
        self.seen += events

    def note(self, text: str) -> None: ...
    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None: ...


class DuringTraining(RecordingDisplay):
    """Calls `act(pid)` once, with the process ID of a rank, when all ranks are training."""

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


@cache
def data_directory() -> Path:
    """An empty data directory for all runs of this process, so that they can share warm containers."""
    directory = TemporaryDirectory(prefix="shardyard-data-")
    atexit.register(directory.cleanup)
    Path(directory.name).chmod(0o755)
    return Path(directory.name)


def _runtime(name: str, cold: bool = False) -> Runtime:
    runtime: Runtime = RUNTIMES.load(name)(cold, shared_network=private_network_missing() is not None)
    return runtime


@cache
def warm_clusters(name: str) -> Clusters:
    """The clusters of a runtime, which stay warm until this process ends."""
    clusters = Clusters(_runtime(name))
    atexit.register(clusters.close)
    return clusters


def execute(
    run: RunSpec, directory: Path, runtime: str = "local", display: Any = None, cold: bool = False
) -> RunResult:
    """Execute one run; its results lie in `directory / run.key`."""
    paths = SweepPaths(directory)
    nodes = Clusters(_runtime(runtime, cold=True)) if cold else warm_clusters(runtime)
    runner = SweepRunner(nodes, runtime, paths, data_directory(), display or RecordingDisplay())
    return runner.run(run)


def event_files(out: Path) -> list[Path]:
    """The files into which ranks have written events, of all runs of a results directory.

    `Path.rglob` raises an error if a directory is removed meanwhile; `os.walk` passes it over.
    """
    found = []
    for directory, _, names in os.walk(out):
        for name in names:
            path = Path(directory, name)
            with suppress(FileNotFoundError):  # removed meanwhile
                if name.startswith("rank-") and path.suffix == ".jsonl" and path.stat().st_size:
                    found.append(path)
    return found


def weights_in(out: Path) -> dict[str, list[str | None]]:
    """The digests of the weights of all runs of a results directory that are ok, by key."""
    results = [read_result(path) for path in out.glob("*/result.json")]
    return {
        each.key: [rank.weights_digest for rank in each.ranks]
        for each in results
        if each and each.status == "ok"
    }


@dataclass(frozen=True)
class FinishedRun:
    """A run's result and its directory."""

    result: RunResult
    directory: Path

    @property
    def weights(self) -> np.ndarray:
        """Final weights, flat, float32; of runs with `save_weights`."""
        return np.load(self.directory / "weights.npy")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()


@dataclass(frozen=True)
class RunCache:
    """Executes each spec once per test session, across tests and xdist workers."""

    directory: Path

    def get(self, runtime: str = "local", **fields: Any) -> FinishedRun:
        """The run of `SMALL` with these fields and saved weights. Treat its results as read-only."""
        run = RunSpec.model_validate({**SMALL, "save_weights": True, **fields})
        directory = self.directory / runtime
        directory.mkdir(parents=True, exist_ok=True)
        paths = SweepPaths(directory).run(run.key)
        with FileLock(directory / f"{run.key}.lock"):
            result = read_result(paths.result) or execute(run, directory, runtime)
        return FinishedRun(result, paths.directory)
