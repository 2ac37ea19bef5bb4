"""Execute runs on local processes: fresh ones, and ones that tests share."""

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
    """`execute(display, strategy="one_shot", nodes=2, …)`: a run of this test's own.

    For tests that disturb the run or look at its processes and files. Others take `run_cache`.
    """

    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        run = RunSpec.model_validate({**SMALL, **fields})
        return runs.execute(run, tmp_path / "results", display=display)

    return execute
