"""One run without a sweep, for its result and its traces."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from trainer.spec.run_spec import RunSpec


def execute(
    run: RunSpec, clusters: Clusters, runtime: str, directory: Path, data_dir: Path
) -> tuple[RunResult, Path]:
    """Execute a run, and print nothing. Returns its result, and the directory of its files.

    runtime: the name of the runtime of `clusters`. directory: of the results.
    """
    paths = SweepPaths(directory)
    quiet = PlainProgress(Console(quiet=True), total=1)
    return SweepRunner(clusters, runtime, paths, data_dir, quiet).run(run), paths.run(run.key).directory
