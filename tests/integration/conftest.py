"""Execute runs on local processes, and one Slurm cluster per session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.support import runs
from tests.support.processes import node_processes
from tests.support.runs import SMALL, RecordingDisplay
from tests.support.slurm_cluster import Cluster, trial_cluster
from trainer.spec.run_spec import RunSpec


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., RunResult]:
    """`execute(display, strategy="one_shot", nodes=2, …)`: a run of this test, which leaves no process.

    For tests that disturb the run or inspect its processes and files. Other tests use `run_cache`.
    """

    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        run = RunSpec.model_validate({**SMALL, **fields})
        result = runs.execute(run, tmp_path / "results", display=display)
        assert node_processes(tmp_path) == []
        return result

    return execute


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests of a process. Needs Slurm."""
    with TemporaryDirectory(prefix="sy-") as directory, trial_cluster() as trial:
        hidden = Path(directory) if os.geteuid() == 0 else None
        if hidden:
            trial.hide(hidden, "yard4")
        yield Cluster(dict(os.environ), hidden)
