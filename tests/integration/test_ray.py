"""Runtime `ray` on one cluster of two raylets of this machine, on which all tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.ray.driver_client import PREFIX, SESSIONS
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.support import runs
from tests.support.processes import node_processes
from tests.support.runs import SMALL, DuringTraining, RecordingDisplay, data_directory
from trainer.spec.run_spec import RunSpec

MISSING = RayRuntime().unavailable_reason()
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.xdist_group("ray"),
]
# A run that outlasts the tests.
LONG = {**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 10_000}
Execute = Callable[..., RunResult]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    """Two raylets. Nothing of them is left at the end: no process, no session."""
    before = {*SESSIONS.glob(f"{PREFIX}*")}
    runtime = RayRuntime(shared_network=True)
    runtime.configure(RayOptions(raylets=2, wait_s=3.0))
    with Clusters(runtime) as clusters:
        clusters.expect([RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "nodes": 2})])
        yield clusters
    assert {*SESSIONS.glob(f"{PREFIX}*")} == before


@pytest.fixture
def execute(clusters: Clusters, tmp_path: Path) -> Iterator[Execute]:
    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        runner = SweepRunner(
            clusters, "ray", SweepPaths(tmp_path), data_directory(), display or RecordingDisplay()
        )
        return runner.run(RunSpec.model_validate({**SMALL, **fields}))

    yield execute
    assert node_processes(tmp_path) == []


def names(processes: Iterable[psutil.Process]) -> list[str]:
    return [process.name() for process in processes]


@pytest.mark.parametrize("transport", ["gloo", "rpc"])
def test_weights_equal_those_of_local_processes(execute: Execute, tmp_path: Path, transport: str) -> None:
    run = {"strategy": "all_reduce", "transport": transport, "nodes": 2}
    found = execute(**run)
    local = runs.execute(RunSpec.model_validate({**SMALL, **run}), tmp_path / "local")
    assert (found.status, found.cause) == ("ok", None)
    assert found.warm
    assert "STRICT_SPREAD" in found.node_kind
    digests = [rank.weights_digest for rank in found.ranks]
    assert None not in digests
    assert digests == [rank.weights_digest for rank in local.ranks]
    assert found.certificate
    assert found.certificate.verified


def test_a_smaller_run_uses_the_first_nodes(execute: Execute) -> None:
    found = execute(strategy="serial")
    assert (found.status, found.nodes_replaced) == ("ok", None)


def test_a_cold_run_has_nodes_of_its_own(execute: Execute, clusters: Clusters) -> None:
    clusters.runtime.cold = True
    found = execute(strategy="one_shot", transport="gloo", nodes=2)
    clusters.runtime.cold = False
    assert (found.status, found.warm) == ("ok", False)


def test_a_killed_rank_is_the_cause_of_its_run(execute: Execute) -> None:
    display = DuringTraining(lambda pid: psutil.Process(pid).kill(), rank=1, ranks=2)
    found = execute(display, **LONG)
    assert found.status == "failed"
    assert "SIGKILL" in str(found.cause)


def test_a_killed_actor_is_named_and_its_run_repeated(execute: Execute) -> None:
    def kill(pid: int) -> None:
        actor = psutil.Process(pid).parents()[1]  # above the warm parent
        assert actor.name().startswith("ray::Node")
        actor.kill()

    display = DuringTraining(kill, rank=1, ranks=2)
    found = execute(display, **{**LONG, "timeout_s": 8.0})
    assert found.nodes_replaced
    assert "node 1 was lost" in found.nodes_replaced
    assert found.status == "timeout"  # of the second attempt


def test_what_is_missing_is_named(execute: Execute) -> None:
    found = execute(strategy="all_reduce", transport="gloo", nodes=4, cpus=256.0)
    assert found.status == "failed"
    assert "no room for 4 nodes of 256 CPUs" in str(found.cause)


def test_a_killed_driver_leaves_nothing(execute: Execute, clusters: Clusters) -> None:
    """The last test: the cluster ends with its driver."""
    execute(strategy="serial")
    runtime = clusters.runtime
    assert isinstance(runtime, RayRuntime)
    (driver,) = [
        each for each in psutil.Process().children() if "orchestrator.runtimes.ray.driver" in each.cmdline()
    ]
    started = driver.children(recursive=True)
    assert len(started) > 6
    driver.kill()
    runtime.close()
    assert names(psutil.wait_procs(started, timeout=10)[1]) == []
