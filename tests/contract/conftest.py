"""Execute runs on every registered runtime: `execute(strategy="one_shot", nodes=2, …)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.identity import identity
from orchestrator.registries import RUNTIME_CLASSES
from orchestrator.runtimes import RUNTIMES
from tests.support import runs
from tests.support.containers import containers_missing, leftovers
from tests.support.processes import node_processes, starts
from tests.support.runs import SMALL, FinishedRun
from trainer.spec.run_spec import RunSpec

RUNTIME_CLASSES["fake"] = (
    "tests.support.fake_runtime:FakeRuntime"  # all that a port needs beside its folder
)
Execute = Callable[..., FinishedRun]
MOST_NODES = 3  # of a run of the contract
OWN = f"shardyard.orchestrator={identity()}"  # the label of this process's containers and networks


@dataclass(frozen=True)
class Nodes:
    """Where and how nodes run. cold: started for every run."""

    runtime: str
    cold: bool

    def start_up_s(self) -> float:
        """More than nodes take to start on this machine, in seconds."""
        return starts(10.0 if self.cold else 3.0)


def _nodes(name: str) -> Iterator[Any]:
    """The ways in which a registered runtime runs nodes. Every change must keep its usual one."""
    marks = [pytest.mark.containers] if name == "docker" else []
    if RUNTIMES.load(name).info.warm:
        yield pytest.param(Nodes(name, cold=False), id=name, marks=marks)
    if name != "ray":  # each run would start a cluster of its own
        yield pytest.param(Nodes(name, cold=True), id=f"{name}-cold", marks=[*marks, pytest.mark.nightly])


@pytest.fixture(params=[param for name in RUNTIMES.entries for param in _nodes(name)])
def nodes(request: pytest.FixtureRequest) -> Nodes:
    """Every registered runtime, with warm and with cold nodes."""
    found: Nodes = request.param
    runtime = RUNTIMES.load(found.runtime)()
    missing = containers_missing() if found.runtime == "docker" else runtime.unavailable_reason()
    runtime.close()
    if missing:
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the runs of all tests: runs in other directories do not share warm containers."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def execute(nodes: Nodes, results: Path) -> Execute:
    directory = results / ("cold" if nodes.cold else "warm") / nodes.runtime

    def execute(**fields: Any) -> FinishedRun:
        run = RunSpec.model_validate({**SMALL, **fields})
        runtime = RUNTIMES.load(nodes.runtime)(shared_network=True)
        partial = runtime.info.simulates_time or nodes.runtime in (
            "ray",
            "fake",
        )  # others run all of the contract
        if partial and (reason := runtime.unsupported_reason(run)):
            pytest.skip(reason)
        if not nodes.cold:  # so that runs on fewer nodes use the containers of those on three
            runs.warm_clusters(nodes.runtime).expect([run, run.model_copy(update={"nodes": MOST_NODES})])
        result = runs.execute(run, directory, nodes.runtime, cold=nodes.cold)
        assert result.warm is not nodes.cold
        return FinishedRun(result, directory / run.key)

    return execute


@pytest.fixture(autouse=True)
def nothing_left(nodes: Nodes, results: Path) -> Iterator[None]:
    """A test leaves no process of its runs, and no container or network but those of warm nodes."""
    contained = nodes.runtime == "docker"
    before = leftovers(OWN) if contained else []
    yield
    assert node_processes(results) == []
    if contained and nodes.cold:
        assert set(leftovers(OWN)) <= set(before)


@pytest.fixture(autouse=True, scope="session")
def no_warm_nodes_left() -> Iterator[None]:
    """Warm nodes end with their runtime."""
    yield
    if containers_missing() is None:
        runs.warm_clusters("docker").close()
        assert leftovers(OWN) == []
