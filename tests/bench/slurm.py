"""Runtime `slurm`: a run in a job of its own, and in one allocation of the sweep, cold and warm."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.slurm.runtime import SlurmRuntime
from orchestrator.sweeps.slurm import SlurmOptions
from tests.bench.runs import Execute
from trainer.spec.run_spec import RunSpec

REPEATS = 3
MANY = 200
ROWS = [("serial", "memory", 1), *(("all_reduce", transport, 2) for transport in ("gloo", "rpc", "mpi"))]
# Options of the sweep, and --cold.
WAYS: dict[str, tuple[SlurmOptions, bool]] = {
    "job per run": (SlurmOptions(), False),
    "allocation, cold": (SlurmOptions(allocation="sweep"), True),
    "allocation, warm": (SlurmOptions(allocation="sweep"), False),
}


def spec(strategy: str, transport: str, nodes: int, seed: int = 0) -> RunSpec:
    fields: dict[str, Any] = {
        "dataset": {"name": "synthetic", "samples": 512, "test_samples": 64},
        "model": {"name": "mlp", "hidden": [32]},
        "epochs": 2,
    }
    named = {"strategy": strategy, "transport": transport, "nodes": nodes, "seed": seed}
    return RunSpec.model_validate(fields | named)


@contextmanager
def runs_in(options: SlurmOptions, cold: bool, runs: Sequence[RunSpec]) -> Iterator[Execute]:
    """Yield a function that executes one of these runs; one that is not ok ends the benchmark."""
    # The current directory, because nodes share it where they share a checkout.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as directory:
        runtime = SlurmRuntime(cold, shared_network=True)
        runtime.configure(options)
        paths, data = SweepPaths(Path(directory) / "results"), Path(directory) / "data"
        runtime.expect(runs, data)
        runner = SweepRunner(runtime, "slurm", paths, data, PlainProgress(Console(quiet=True), total=1))

        def execute(run: RunSpec) -> Any:
            result = runner.run(run)
            if result.status != "ok":
                sys.exit(f"{result.key}: {result.cause}")
            return result

        try:
            yield execute
        finally:
            runtime.close()


def main() -> None:
    """Measure every row once per round in each way, and print medians."""
    if reason := SlurmRuntime().unavailable_reason():
        print(f"runtime slurm: skipped, {reason}")
        return
    runs = [spec(*row) for row in ROWS]
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        execute = {way: stack.enter_context(runs_in(*how, runs)) for way, how in WAYS.items()}
        for way in WAYS:  # submits the allocation, and starts the warm nodes
            print(f"first run, {way}: {execute[way](runs[0]).wall_s:.1f} s")
        for _ in range(REPEATS):
            for run in runs:
                for way in WAYS:
                    result = execute[way](run)
                    seconds = result.wall_s - (result.train_s or 0.0)
                    found.setdefault((result.key, way), []).append(seconds)
    print(f"wall time of a run minus its training, s, median (min to max) of {REPEATS}")
    for (key, way), seconds in found.items():
        spread = f"{statistics.median(seconds):6.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"  {key:36} {way:18} {spread}")


def many() -> None:
    """Execute many short runs of two nodes in one allocation."""
    if reason := SlurmRuntime().unavailable_reason():
        print(f"runtime slurm: skipped, {reason}")
        return
    runs = [spec("all_reduce", "gloo", 2, seed) for seed in range(MANY)]
    options, cold = WAYS["allocation, warm"]
    with runs_in(options, cold, runs) as execute:
        began = time.perf_counter()
        results = [execute(run) for run in runs]
        seconds = time.perf_counter() - began
    later = [result.wall_s for result in results[1:]]
    replaced = sum(result.nodes_replaced is not None for result in results)
    print(f"{MANY} runs in one allocation: {seconds:.0f} s, warm nodes replaced in {replaced}")
    print(f"  first run {results[0].wall_s:.1f} s, the others {statistics.median(later):.2f} s (median)")
    halves = [statistics.median(half) for half in (later[: MANY // 2], later[MANY // 2 :])]
    print(f"  first half {halves[0]:.2f} s, second half {halves[1]:.2f} s")


if __name__ == "__main__":
    main()
