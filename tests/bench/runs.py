"""Runs as a sweep carries them out, in a directory that is gone afterwards."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from orchestrator.display import PlainDisplay
from orchestrator.result import RunResult
from orchestrator.runner import Display, Runner
from orchestrator.runtimes import RUNTIMES
from orchestrator.store import SweepPaths
from orchestrator.topology import plan
from trainer.spec import RunSpec

Execute = Callable[[RunSpec], RunResult]


@contextmanager
def runs_on(runtime: str, display: Display | None = None) -> Iterator[Execute]:
    """What carries out one run on this runtime; ends the benchmark if the run is not ok.

    display: who is told what goes on while it does.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = RUNTIMES.load(runtime)()
        if reason := place.unavailable():
            sys.exit(reason)
        paths = SweepPaths(Path(directory))
        told = display or PlainDisplay(Console(quiet=True), total=1)
        runner = Runner(place, runtime, paths, Path(directory) / "data", told)

        def execute(run: RunSpec) -> RunResult:
            result = runner.execute(plan(run), paths.run(run.key))
            if result.status != "ok":
                sys.exit(f"{result.key}: {result.cause}")
            return result

        yield execute
