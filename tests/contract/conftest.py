"""Execute runs on every registered runtime: `execute(strategy="one_shot", nodes=2, …)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.identity import identity
from tests.support import runs
from tests.support.containers import containers_missing, leftovers
from tests.support.processes import node_processes
from tests.support.runs import SMALL, FinishedRun
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., FinishedRun]


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.containers] if name == "docker" else [])
        for name in RUNTIMES.entries
    ]
)
def runtime(request: pytest.FixtureRequest) -> str:
    """The registered runtimes, one after the other."""
    name: str = request.param
    missing = containers_missing() if name == "docker" else RUNTIMES.load(name)().unavailable_reason()
    if missing:
        pytest.skip(missing)
    return name


@pytest.fixture
def execute(runtime: str, tmp_path: Path) -> Execute:
    def execute(**fields: Any) -> FinishedRun:
        run = RunSpec.model_validate({**SMALL, **fields})
        return FinishedRun(runs.execute(run, tmp_path / "results", runtime), tmp_path / "results" / run.key)

    return execute


@pytest.fixture(autouse=True)
def nothing_left(runtime: str, tmp_path: Path) -> Iterator[None]:
    """A test leaves no process, container or network of its runs."""
    yield
    assert node_processes(tmp_path) == []
    if runtime == "docker":
        assert leftovers(f"shardyard.orchestrator={identity()}") == []
