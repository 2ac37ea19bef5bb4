"""Execute runs as a sweep does, in a temporary directory."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import Progress, SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from trainer.spec.run_spec import RunSpec

Execute = Callable[[RunSpec], RunResult]


@contextmanager
def runs_on(
    runtime: str, display: Progress | None = None, cold: bool = False, results: Path | None = None
) -> Iterator[Execute]:
    """Yield a function that executes one run; a run that is not ok ends the benchmark.

    Args:
        runtime: Name of the runtime.
        cold: Start all processes afresh for every run.
        display: Receives the run's events.
        results: Directory for the results; None for a temporary one.
    """
    with nullcontext(results) if results else tempfile.TemporaryDirectory() as directory:
        nodes = RUNTIMES.load(runtime)(cold)
        if reason := nodes.unavailable_reason():
            sys.exit(reason)
        clusters, paths = Clusters(nodes), SweepPaths(Path(directory))
        progress = display or PlainProgress(Console(quiet=True), total=1)
        runner = SweepRunner(clusters, runtime, paths, Path(directory) / "data", progress)

        def execute(run: RunSpec) -> RunResult:
            result = runner.run(run)
            if result.status != "ok":
                sys.exit(f"{result.key}: {result.cause}")
            return result

        try:
            yield execute
        finally:
            clusters.close()
