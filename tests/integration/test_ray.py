"""Mistakes of runtime `ray` on one cluster of two raylets of this machine, on which all tests run.

Lost actors, raylets and heads are in tests/faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.runtimes.ray.cluster import OWNER, PREFIX, SESSIONS
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.support import runs
from tests.support.nightly import nightly
from tests.support.processes import ended, node_processes
from tests.support.runs import SMALL, RecordingDisplay, digests, execute_on, killing
from trainer.spec.run_spec import RunSpec

MISSING = RayRuntime().unavailable_reason()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
# A run that outlasts the tests.
LONG = {**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 10_000}
Execute = Callable[..., RunResult]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    """Two raylets. Nothing of them is left at the end: no process, no session."""
    before = own_sessions()  # of the nodes of other tests in this process
    runtime = RayRuntime(shared_network=True)
    runtime.configure(RayOptions(raylets=2, wait_s=3.0))
    with Clusters(runtime) as clusters:
        clusters.expect([RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "nodes": 2})])
        yield clusters
    assert own_sessions() <= before


def own_sessions() -> set[Path]:
    """The directories of the clusters of this process."""
    return {each for each in SESSIONS.glob(f"{PREFIX}*") if (each / OWNER).read_text() == identity()}


@pytest.fixture
def execute(clusters: Clusters, tmp_path: Path) -> Iterator[Execute]:
    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        return execute_on(clusters, "ray", tmp_path, display, fields)

    yield execute
    assert node_processes(tmp_path) == []


def names(processes: Iterable[psutil.Process]) -> list[str]:
    return [process.name() for process in processes]


def held(clusters: Clusters) -> Any:
    """The nodes that all runs share."""
    return clusters._held[-1].cluster


@pytest.mark.parametrize("transport", ["gloo", *nightly("rpc")])
def test_weights_equal_those_of_local_processes(execute: Execute, tmp_path: Path, transport: str) -> None:
    run = {"strategy": "all_reduce", "transport": transport, "nodes": 2}
    found = execute(**run)
    local = runs.execute(RunSpec.model_validate({**SMALL, **run}), tmp_path / "local")
    assert (found.status, found.cause) == ("ok", None)
    assert found.warm
    assert "STRICT_SPREAD" in found.node_kind
    assert None not in digests(found)
    assert digests(found) == digests(local)
    assert found.certificate
    assert found.certificate.verified


def test_a_smaller_run_uses_the_first_nodes(execute: Execute) -> None:
    found = execute(strategy="serial")
    assert (found.status, found.nodes_replaced) == ("ok", None)


@pytest.mark.nightly
def test_a_cold_run_has_nodes_of_its_own(execute: Execute, clusters: Clusters) -> None:
    clusters.runtime.cold = True
    found = execute(strategy="one_shot", transport="gloo", nodes=2)
    clusters.runtime.cold = False
    assert (found.status, found.cause, found.warm) == ("ok", None, False)


def test_a_killed_rank_is_the_cause_of_its_run(execute: Execute) -> None:
    found = execute(killing(1, ranks=2), **LONG)
    assert found.status == "failed"
    assert "SIGKILL" in str(found.cause)


def test_what_is_missing_is_named(execute: Execute) -> None:
    found = execute(strategy="all_reduce", transport="gloo", nodes=4, cpus=256.0)
    assert found.status == "failed"
    assert "no room for 4 nodes of 256 CPUs" in str(found.cause)


def test_a_killed_driver_leaves_nothing(execute: Execute, clusters: Clusters) -> None:
    """The last test: the cluster ends with its driver."""
    execute(strategy="serial")
    driver = psutil.Process(held(clusters)._process.pid)
    started = [each for each in driver.children(recursive=True) if not ended(each)]
    assert len(started) > 6
    driver.kill()
    held(clusters).delete()
    assert names(psutil.wait_procs(started, timeout=10)[1]) == []
