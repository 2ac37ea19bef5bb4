"""Time of a run on every runtime until its first training step, and from its last one to its row.

Runtime `swarm` needs DOCKER_HOST of a manager; then runtime `docker` uses this engine, too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.slurm.options import SlurmOptions
from tests.bench.runs import Execute
from trainer.spec.run_spec import RunSpec

REPEATS = 3
MANY = 200
ROWS = [("serial", "memory", 1), *(("all_reduce", transport, 2) for transport in ("gloo", "rpc", "mpi"))]


@dataclass(frozen=True)
class Way:
    """How a runtime starts the nodes of a run."""

    runtime: str
    cold: bool
    options: BaseModel | None = None


ALLOCATION = Way("slurm", False, SlurmOptions(allocation="sweep"))
WAYS = {
    "local, cold": Way("local", True),
    "local, warm": Way("local", False),
    "docker, cold": Way("docker", True),
    "docker, warm": Way("docker", False),
    "swarm": Way("swarm", True),
    "slurm, job per run": Way("slurm", False),
    "slurm, allocation, cold": Way("slurm", True, SlurmOptions(allocation="sweep")),
    "slurm, allocation, warm": ALLOCATION,
}


def until_first_step(result: RunResult) -> float:
    return result.startup_s or 0.0


def from_last_step(result: RunResult) -> float:
    return result.teardown_s or 0.0


def spec(strategy: str, transport: str, nodes: int, seed: int = 0) -> RunSpec:
    fields: dict[str, Any] = {
        "dataset": {"name": "synthetic", "samples": 512, "test_samples": 64},
        "model": {"name": "mlp", "hidden": [32]},
        "epochs": 2,
    }
    named = {"strategy": strategy, "transport": transport, "nodes": nodes, "seed": seed}
    return RunSpec.model_validate(fields | named)


@contextmanager
def runs_in(way: Way, runs: Sequence[RunSpec]) -> Iterator[Execute]:
    """Yield a function that executes one of these runs; one that is not ok ends the benchmark."""
    # The current directory, because Slurm's nodes share it where they share a checkout.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as directory:
        runtime = RUNTIMES.load(way.runtime)(way.cold, shared_network=True)
        runtime.configure(way.options or runtime.Options())
        paths, data = SweepPaths(Path(directory) / "results"), Path(directory) / "data"
        for run in runs:
            if reason := runtime.unsupported_reason(run):
                sys.exit(reason)
        clusters = Clusters(runtime)
        clusters.expect(runs)
        runner = SweepRunner(
            clusters, way.runtime, paths, data, PlainProgress(Console(quiet=True), total=1)
        )

        def execute(run: RunSpec) -> RunResult:
            result = runner.run(run)
            if result.status != "ok":
                sys.exit(f"{result.key}: {result.cause}")
            return result

        try:
            yield execute
        finally:
            clusters.close()


def main() -> None:
    """Measure every row once per round in each way, and print medians."""
    ways = {name: way for name, way in WAYS.items() if _is_available(name, way)}
    runs = [spec(*row) for row in ROWS]
    found: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    with ExitStack() as stack:
        execute = {name: stack.enter_context(runs_in(way, runs)) for name, way in ways.items()}
        for name in ways:  # starts the warm nodes
            print(
                f"first run, {name}: {until_first_step(execute[name](runs[0])):.1f} s until the first step"
            )
        for _ in range(REPEATS):
            for run in runs:
                for name in ways:
                    result = execute[name](run)
                    found[result.key, name].append(result)
    print(f"until the first step, and from the last step to the row, s: median (min to max) of {REPEATS}")
    for (key, name), results in found.items():
        spreads = (_spread(seconds, results) for seconds in (until_first_step, from_last_step))
        print(f"  {key:36} {name:24} {'   '.join(spreads)}")


def _is_available(name: str, way: Way) -> bool:
    if reason := RUNTIMES.load(way.runtime)().unavailable_reason():
        print(f"{name}: skipped, {reason}")
    return reason is None


def _spread(seconds: Callable[[RunResult], float], results: Sequence[RunResult]) -> str:
    values = [seconds(result) for result in results]
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"


def many() -> None:
    """Execute many short runs of two nodes in one Slurm allocation."""
    if not _is_available("slurm, allocation, warm", ALLOCATION):
        return
    runs = [spec("all_reduce", "gloo", 2, seed) for seed in range(MANY)]
    with runs_in(ALLOCATION, runs) as execute:
        began = time.perf_counter()
        results = [execute(run) for run in runs]
        seconds = time.perf_counter() - began
    later = [result.wall_s for result in results[1:]]
    replaced = sum(result.nodes_replaced is not None for result in results)
    print(f"{MANY} runs in one allocation: {seconds:.0f} s, warm nodes replaced in {replaced}")
    print(f"  first run {results[0].wall_s:.1f} s, the others {statistics.median(later):.2f} s (median)")
    halves = [statistics.median(half) for half in (later[: MANY // 2], later[MANY // 2 :])]
    print(f"  first half {halves[0]:.2f} s, second half {halves[1]:.2f} s")
