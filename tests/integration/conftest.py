"""Execute runs on local processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support import runs
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., RunResult]:
    """`execute(display, strategy="one_shot", nodes=2, …)`: execute a run for this test only.

    For tests that disturb the run or inspect its processes and files. Other tests use `run_cache`.
    """

    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        run = RunSpec.model_validate({**SMALL, **fields})
        return runs.execute(run, tmp_path / "results", display=display)

    return execute
