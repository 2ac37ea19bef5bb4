"""Mistakes of runtime `ray` on one cluster of two raylets of this machine, on which all tests run."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.ray import driver_client
from orchestrator.runtimes.ray.driver_client import OWNER, PREFIX, SESSIONS
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.run import RayCluster
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.support import runs
from tests.support.command_line import end, orchestrator, start
from tests.support.nightly import nightly
from tests.support.processes import ended, node_processes, wait_until
from tests.support.runs import (
    SMALL,
    DuringTraining,
    RecordingDisplay,
    data_directory,
    digests,
    event_files,
    execute_on,
    killing,
    write_sweep,
)
from trainer.spec.run_spec import RunSpec

MISSING = RayRuntime().unavailable_reason()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.xdist_group("ray")]
# A run that outlasts the tests.
LONG = {**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 10_000}
Execute = Callable[..., RunResult]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    """Two raylets. Nothing of them is left at the end: no process, no session."""
    runtime = RayRuntime(shared_network=True)
    runtime.configure(RayOptions(raylets=2, wait_s=3.0))
    with Clusters(runtime) as clusters:
        clusters.expect([RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "nodes": 2})])
        yield clusters
    assert own_sessions() == set()


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


def driver() -> psutil.Process:
    children = [each for each in psutil.Process().children() if not ended(each)]
    (found,) = [each for each in children if "orchestrator.runtimes.ray.driver" in each.cmdline()]
    return found


def of_cluster(name: str) -> list[psutil.Process]:
    """The processes of the cluster whose names begin so."""
    found = [each for each in driver().children(recursive=True) if each.name().startswith(name)]
    return [each for each in found if not ended(each)]


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
    assert (found.status, found.warm) == ("ok", False)


def test_a_killed_rank_is_the_cause_of_its_run(execute: Execute) -> None:
    found = execute(killing(1, ranks=2), **LONG)
    assert found.status == "failed"
    assert "SIGKILL" in str(found.cause)


def lose_a_node(execute: Execute, strike: Callable[[psutil.Process], None]) -> RunResult:
    """A run that loses a node, and whose second attempt ends as a rank is killed. strike: gets a rank."""

    def act(pid: int) -> None:
        strike(psutil.Process(pid))
        wait_until(lambda: sum(event.kind == "train_start" for event in display.seen) == 4)
        *_, second = [event.fields["pid"] for event in display.seen if event.kind == "start"]
        psutil.Process(second).kill()

    display = DuringTraining(act, rank=1, ranks=2)
    found = execute(display, **LONG)
    assert "SIGKILL" in str(found.cause)
    return found


@pytest.mark.nightly
def test_a_killed_actor_is_named_and_its_run_repeated(execute: Execute) -> None:
    def kill(rank: psutil.Process) -> None:
        actor = rank.parents()[1]  # above the warm parent
        assert actor.name().startswith("ray::Node")
        actor.kill()

    assert "node 1 was lost" in str(lose_a_node(execute, kill).nodes_replaced)


def test_what_is_missing_is_named(execute: Execute) -> None:
    found = execute(strategy="all_reduce", transport="gloo", nodes=4, cpus=256.0)
    assert found.status == "failed"
    assert "no room for 4 nodes of 256 CPUs" in str(found.cause)


@pytest.mark.nightly
def test_a_killed_raylet_is_named_and_its_run_repeated(execute: Execute) -> None:
    def kill(rank: psutil.Process) -> None:
        raylet = rank.parents()[2]  # above the actor
        assert raylet.name() == "raylet"
        raylet.kill()

    # If it is that of Ray's driver, all nodes are lost, in any order.
    assert re.search(r"node [01] was lost: .* died", str(lose_a_node(execute, kill).nodes_replaced))


@pytest.mark.nightly
def test_a_killed_sweep_leaves_nothing_on_a_cluster_of_others(
    execute: Execute, clusters: Clusters, tmp_path: Path
) -> None:
    """The raylets of the other tests are the cluster."""
    execute(strategy="serial")
    file = write_sweep(tmp_path / "long.yml", LONG)
    variables = {name: value for name, value in driver().environ().items() if name.startswith("RAY_")}
    (address,) = {
        part.removeprefix("--gcs-address=")
        for raylet in of_cluster("raylet")
        for part in raylet.cmdline()
        if part.startswith("--gcs-address=")
    }
    own = of_cluster("ray::Node")
    command = orchestrator("sweep", file, "--runtime", "ray", "--no-warm-up-run")
    sweep = start(command, tmp_path, **variables, RAY_ADDRESS=address)
    try:
        wait_until(lambda: len(event_files(tmp_path / "results")) == 2)
        actors = [each for each in of_cluster("ray::Node") if each not in own]
        assert len(actors) == 2
        started = [*actors, *node_processes(tmp_path), *psutil.Process(sweep.pid).children(recursive=True)]
    finally:
        end(sweep, signal.SIGKILL)
    assert names(psutil.wait_procs(started, timeout=20)[1]) == []
    # Its placement group is gone, too: there is room for all that the nodes of the other tests leave.
    most = RunSpec.model_validate({**LONG, "cpus": 255.0})
    runtime = clusters.runtime
    group = runtime.create(runtime.plan(most, SweepPaths(tmp_path).run(most.key), data_directory()))
    assert isinstance(group, RayCluster)
    assert group.ask("nodes", timeout_s=5.0).missing is None
    group.delete()


@pytest.mark.nightly
def test_a_killed_head_is_named_and_replaced_before_the_next_run(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_client, "HEAD_S", 2.0)
    execute(strategy="serial")
    (head,) = of_cluster("gcs_server")
    head.kill()
    found = execute(strategy="serial", seed=1)
    assert found.status == "ok"
    assert found.nodes_replaced == "the head of the Ray cluster did not answer within 2 s"


def test_a_killed_driver_leaves_nothing(execute: Execute, clusters: Clusters) -> None:
    """The last test: the cluster ends with its driver."""
    execute(strategy="serial")
    started = of_cluster("")
    assert len(started) > 6
    driver().kill()
    clusters.runtime.close()
    assert names(psutil.wait_procs(started, timeout=10)[1]) == []
