"""Runs as a sweep carries them out, in a directory that is gone afterwards."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from orchestrator.execution.progress import PlainProgress
from orchestrator.execution.sweep_runner import Display, SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from trainer.spec.run_spec import RunSpec

Execute = Callable[[RunSpec], RunResult]


@contextmanager
def runs_on(runtime: str, display: Display | None = None) -> Iterator[Execute]:
    """What carries out one run on this runtime; ends the benchmark if the run is not ok.

    display: who is told what goes on while it does.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = RUNTIMES.load(runtime)()
        if reason := place.unavailable_reason():
            sys.exit(reason)
        paths = SweepPaths(Path(directory))
        told = display or PlainProgress(Console(quiet=True), total=1)
        runner = SweepRunner(place, runtime, paths, Path(directory) / "data", told)

        def execute(run: RunSpec) -> RunResult:
            result = runner.run(run)
            if result.status != "ok":
                sys.exit(f"{result.key}: {result.cause}")
            return result

        yield execute
