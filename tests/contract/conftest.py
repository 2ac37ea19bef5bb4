"""Every registered runtime carries out one run: `execute(strategy="one_shot", nodes=2, …)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.identity import identity
from tests.support.containers import containers_missing, leftovers
from tests.support.processes import node_processes
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., RunResult]


@pytest.fixture(params=list(RUNTIMES.entries))
def runtime(request: pytest.FixtureRequest) -> str:
    """The runtimes of the registry, one after the other."""
    name: str = request.param
    missing = containers_missing() if name == "docker" else RUNTIMES.load(name)().unavailable_reason()
    if missing:
        pytest.skip(missing)
    return name


@pytest.fixture
def execute(runtime: str, tmp_path: Path) -> Execute:
    def execute(on_events: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        run = RunSpec.model_validate({**SMALL, **fields})
        paths = SweepPaths(tmp_path / "results")
        data = tmp_path / "data"
        runner = SweepRunner(
            RUNTIMES.load(runtime)(), runtime, paths, data, on_events or RecordingDisplay()
        )
        return runner.run(run)

    return execute


@pytest.fixture(autouse=True)
def nothing_left(runtime: str, tmp_path: Path) -> Iterator[None]:
    """After every test: no process, no container, no network of its runs."""
    yield
    assert node_processes(tmp_path) == []
    if runtime == "docker":
        assert leftovers(f"shardyard.orchestrator={identity()}") == []
