"""Execute runs as a sweep does, in a temporary directory."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import Progress, SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from tests.support.processes import private_network_missing
from trainer.spec.run_spec import RunSpec

Execute = Callable[[RunSpec], RunResult]


@contextmanager
def runs_on(
    runtime: str,
    display: Progress | None = None,
    cold: bool = False,
    results: Path | None = None,
    options: BaseModel | None = None,
    expected: Sequence[RunSpec] = (),
) -> Iterator[Execute]:
    """Yield a function that executes one run; a run that is not ok ends the benchmark.

    Args:
        display: Receives the run's events.
        cold: Start all processes afresh for every run.
        results: Directory for the results; None for a temporary one in the current directory, which Slurm's
            nodes share where they share a checkout.
        options: Of the runtime.
        expected: The runs, if they are known.
    """
    temporary = tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())
    with nullcontext(results) if results else temporary as directory:
        shared = runtime != "local" or private_network_missing() is not None
        nodes = RUNTIMES.load(runtime)(cold, shared_network=shared)
        nodes.configure(options or nodes.Options())
        reasons = [nodes.unavailable_reason(), *map(nodes.unsupported_reason, expected)]
        if reason := next(filter(None, reasons), None):
            sys.exit(reason)
        clusters, paths = Clusters(nodes), SweepPaths(Path(directory))
        clusters.expect(expected)
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
