"""The error of cluster time: against wall time where each rank has a core, and beside another load.

Every strategy that has traces runs on as many nodes as it needs, at least two. Runs with more ranks than
cores have no wall time to compare with; they are only repeated beside the load.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.replay.described import cluster_times
from orchestrator.replay.run import NoClusterTime
from orchestrator.results.limits import shares_cores
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from tests.bench.runs import runs_on
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

SEEDS = 3
RUN: dict[str, Any] = {"dataset": "digits", "model": "lenet", "lr": 0.02, "batch_size": 32, "epochs": 5}
FIELDS = ("wall_s", "cluster_s")
CONTENTION = 0.05  # of wall time; with more, the ranks did not have a core each


@dataclass(frozen=True)
class Times:
    """Seconds of one run. alone: whether each rank had a core all the time."""

    wall_s: float
    cluster_s: float
    alone: bool

    @property
    def error(self) -> float:
        """Relative to wall time."""
        return self.cluster_s / self.wall_s - 1


def error() -> None:
    """Print the error of cluster time for each strategy, without and beside a load on all cores."""
    print(f"error of cluster time: {RUN['model']} on {RUN['dataset']}, local nodes, {SEEDS} seeds")
    print("  medians; error: cluster time / wall time - 1, of runs whose ranks had a core each")
    quiet = measured()
    errors = []
    for name, times in quiet.items():
        alone = [each.error for each in times if each.alone]
        errors += [abs(each) for each in alone]
        shown = f"{median(alone):+7.1%}" if alone else "      –"
        wall, cluster = (median(getattr(each, field) for each in times) for field in FIELDS)
        print(f"  {name:32} wall {wall:6.3f} s  cluster {cluster:6.3f} s  error {shown}", flush=True)
    if errors:
        print(f"  error of {len(errors)} runs: median {median(errors):.1%}, worst {max(errors):.1%}")
    with load():
        loaded = measured()
    print("  beside a load on all cores, relative to the times above:")
    for name in quiet:
        wall, cluster = (_ratio(loaded[name], quiet[name], field) for field in FIELDS)
        print(f"  {name:32} wall {wall:5.2f}  cluster {cluster:5.2f}")
    changes = [abs(_ratio(loaded[name], quiet[name], "cluster_s") - 1) for name in quiet]
    print(
        f"  change of cluster time beside the load: median {median(changes):.1%}, worst {max(changes):.1%}"
    )


def measured() -> dict[str, list[Times]]:
    """The times of each strategy, by name; one seed after the other."""
    found: dict[str, list[Times]] = {}
    results: list[tuple[str, RunResult]] = []
    with tempfile.TemporaryDirectory() as directory, runs_on("local", results=Path(directory)) as execute:
        for seed in (SEEDS, *range(SEEDS)):
            for run in runs(seed):
                result = execute(run)
                if seed != SEEDS:  # executed first, with cold caches
                    results.append((run.key, result))
        clusters = cluster_times(SweepPaths(Path(directory)), results)
    for key, result in results:
        run, cluster = result.run, clusters[key]
        if isinstance(cluster, NoClusterTime) or not result.train_s:
            sys.exit(f"{key}: no cluster time: {cluster}")
        contention = result.seconds.get("cpu_contention", 0.0)
        shared = shares_cores(run, result.runtime_info, result.cores)
        alone = not shared and contention < CONTENTION * result.train_s
        name = f"{run.name_of('strategy')} {run.transport} {run.nodes}"
        found.setdefault(name, []).append(Times(result.train_s, cluster.cluster_s, alone))
    return found


def runs(seed: int) -> Iterator[RunSpec]:
    """A run of each strategy over each transport that connects processes."""
    for name in STRATEGIES.entries:
        strategy = STRATEGIES.load(name)
        for transport in strategy.transports:
            if transport not in ("gloo", "mpi", "rpc") and name != "serial":
                continue
            nodes = 1 if name == "serial" else max(2, strategy.min_nodes)
            fields = {"strategy": name, "transport": transport, "nodes": nodes, "seed": seed}
            run = RunSpec.model_validate({**RUN, **fields})
            if not untraced_reason(run):
                yield run


def _ratio(loaded: list[Times], quiet: list[Times], field: str) -> float:
    return median(getattr(t, field) for t in loaded) / median(getattr(t, field) for t in quiet)


@contextmanager
def load() -> Iterator[None]:
    """One busy process for each core."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
