"""One run through the runner, on real processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., RunResult]:
    """Carry out one run on local processes: `execute(strategy="one_shot", nodes=2, …)`."""

    def execute(on_events: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        run = RunSpec.model_validate({**SMALL, **fields})
        paths = SweepPaths(tmp_path / "results")
        runner = SweepRunner(LocalRuntime(), "local", paths, tmp_path, on_events or RecordingDisplay())
        return runner.run(run)

    return execute
