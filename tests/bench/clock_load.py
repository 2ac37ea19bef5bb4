"""The same runs twice, once beside busy loops: wall times grow, cluster times and speedups should stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from orchestrator.replay.described import cluster_times
from orchestrator.replay.run import NoClusterTime
from orchestrator.results.store import SweepPaths
from tests.bench.predictions import RUN, SEEDS, label, strategies
from tests.bench.runs import runs_on
from trainer.spec.run_spec import RunSpec

LOOPS = 3  # for each core
SERIAL = "serial memory 1"

Times = dict[str, tuple[float, float]]  # median wall and cluster seconds, by name


def main() -> None:
    print(
        f"beside {LOOPS} busy loops per core, relative to without: medians of {len(SEEDS)} seeds; targets: "
        "off by 10 % in the median, 25 % at most"
    )
    quiet = measured()
    with load():
        loaded = measured()
    times, speedups = [], []
    for name, (wall_s, cluster_s) in quiet.items():
        wall, cluster = loaded[name][0] / wall_s, loaded[name][1] / cluster_s
        speedup = loaded[SERIAL][1] / quiet[SERIAL][1] / cluster
        times.append(abs(cluster - 1))
        if name != SERIAL:
            speedups.append(abs(speedup - 1))
        print(f"  {name:32} wall {wall:5.2f}  cluster {cluster:5.2f}  speedup {speedup:5.2f}")
    for what, changes in (("cluster time", times), ("speedup", speedups)):
        print(f"  change of {what}: median {median(changes):.1%}, worst {max(changes):.1%}", flush=True)


def measured() -> Times:
    """The times of serial and of each strategy on two local nodes; one seed after the other."""
    with tempfile.TemporaryDirectory() as directory, runs_on("local", results=Path(directory)) as execute:
        execute(next(strategies(SEEDS[0])))  # with cold caches; it does not count
        runs = [run for seed in SEEDS for run in (serial(seed), *strategies(seed))]
        results = [(run.key, execute(run)) for run in runs]
        clusters = cluster_times(SweepPaths(Path(directory)), results)
    found: dict[str, list[tuple[float, float]]] = {}
    for run, (key, result) in zip(runs, results, strict=True):
        cluster = clusters[key]
        if isinstance(cluster, NoClusterTime) or not result.train_s:
            sys.exit(f"{key}: no cluster time: {cluster}")
        found.setdefault(label(run), []).append((result.train_s, cluster.cluster_s))
    return {
        name: (median(wall for wall, _ in times), median(cluster for _, cluster in times))
        for name, times in found.items()
    }


def serial(seed: int) -> RunSpec:
    return RunSpec.model_validate({**RUN, "strategy": "serial", "seed": seed})


@contextmanager
def load() -> Iterator[None]:
    """Busy processes."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(LOOPS * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
