"""A small run, displays that record or disturb it, and a cache of finished runs."""

from __future__ import annotations

import atexit
import csv
import json
import os
import signal
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
import psutil
from filelock import FileLock

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_result
from orchestrator.runtimes import RUNTIMES
from tests.support.processes import node_processes, private_network_missing
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
    """Calls `act(pid)` once, with a rank's process ID, when so many ranks have reported a kind of event."""

    def __init__(
        self,
        act: Callable[[int], None],
        rank: int,
        ranks: int = 3,
        kind: str = "train_start",
        after_s: float = 0.3,
        find: Callable[[int], list[int]] | None = None,
    ) -> None:
        """find: the process IDs of a rank; by default that which it has reported."""
        super().__init__()
        self._act, self._rank, self._ranks, self._kind, self._after_s = act, rank, ranks, kind, after_s
        self._find = find or self._reported
        self.pid = 0
        self.at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _reported(self, rank: int) -> list[int]:
        return [each.fields["pid"] for each in self.seen if (each.kind, each.rank) == ("start", rank)]

    def _run(self) -> None:
        while len({event.rank for event in self.seen if event.kind == self._kind}) < self._ranks or not (
            pids := self._find(self._rank)
        ):
            time.sleep(0.02)
        time.sleep(self._after_s)
        self.pid, self.at = pids[0], time.time()
        self._act(self.pid)


def killing(rank: int, number: signal.Signals = signal.SIGKILL, **when: Any) -> DuringTraining:
    """Sends a signal to a rank. when: as of `DuringTraining`."""
    return DuringTraining(lambda pid: os.kill(pid, number), rank, **when)


def killing_early(directory: Path, rank: int, kind: str, ranks: int) -> DuringTraining:
    """Kills a rank of a run below a directory, also before it has reported. ranks: 0 for at once."""

    def find(rank: int) -> list[int]:
        with suppress(psutil.Error):
            return [
                each.pid
                for each in node_processes(directory)
                if str(rank) in map(each.environ().get, ("RANK", "OMPI_COMM_WORLD_RANK"))
            ]
        return []

    return killing(rank, kind=kind, ranks=ranks, after_s=0.0, find=find)


@cache
def data_directory() -> Path:
    """An empty data directory for all runs of this process, so that they can share warm containers."""
    directory = TemporaryDirectory(prefix="shardyard-data-")
    atexit.register(directory.cleanup)
    Path(directory.name).chmod(0o755)
    return Path(directory.name)


@cache
def warm_clusters(name: str) -> Clusters:
    """The clusters of a runtime, which stay warm until this process ends."""
    clusters = _clusters(name)
    atexit.register(clusters.close)
    return clusters


def _clusters(name: str, cold: bool = False) -> Clusters:
    return Clusters(RUNTIMES.load(name)(cold, shared_network=private_network_missing() is not None))


def execute(
    run: RunSpec, directory: Path, runtime: str = "local", display: Any = None, cold: bool = False
) -> RunResult:
    """Execute one run; its results lie in `directory / run.key`."""
    clusters = _clusters(runtime, cold=True) if cold else warm_clusters(runtime)
    return execute_on(clusters, runtime, directory, display, run)


def execute_on(
    clusters: Clusters, runtime: str, directory: Path, display: Any, run: RunSpec | dict[str, Any]
) -> RunResult:
    """Execute one run on clusters of a test's own. run: or its fields beside `SMALL`."""
    spec = run if isinstance(run, RunSpec) else RunSpec.model_validate({**SMALL, **run})
    paths, display = SweepPaths(directory), display or RecordingDisplay()
    return SweepRunner(clusters, runtime, paths, data_directory(), display).run(spec)


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


def results_in(out: Path) -> list[RunResult]:
    """The results of all runs of a results directory, in the order in which they started."""
    found = [each for each in map(read_result, out.glob("*/result.json")) if each]
    return sorted(found, key=lambda each: each.started_at)


def only_result(out: Path) -> RunResult:
    (result,) = results_in(out)
    return result


def lines_in(out: Path, name: str = "results.csv") -> list[dict[str, str]]:
    """The lines of a CSV file of a results directory."""
    with open(out / name, encoding="utf-8", newline="") as table:
        return [*csv.DictReader(table)]


def events_of(directory: Path) -> list[Event]:
    """The events of a run that has ended, in its directory."""
    return [Event.from_line(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def digests(result: RunResult) -> list[str | None]:
    return [rank.weights_digest for rank in result.ranks]


def weights_in(out: Path) -> dict[str, list[str | None]]:
    """The digests of the weights of all runs of a results directory that are ok, by key."""
    return {each.key: digests(each) for each in results_in(out) if each.status == "ok"}


def write_sweep(file: Path, base: dict[str, Any], *blocks: dict[str, Any], **others: Any) -> Path:
    """Write a sweep. blocks: fields of runs, or whole blocks. others: such as options of a runtime."""
    parts = [each if {"axes", "base"} & each.keys() else {"base": each} for each in blocks or ({},)]
    file.write_text(json.dumps({"name": file.stem, "base": base, "blocks": parts, **others}))
    return file


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

    def ok(self, runtime: str = "local", **fields: Any) -> FinishedRun:
        """As `get`; the run must be ok."""
        run = self.get(runtime, **fields)
        assert (run.result.status, run.result.cause) == ("ok", None)
        return run
