"""Mistakes in what runtime `ray` refuses, asks Ray for, tells nodes and believes. Ray is not needed."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.led import LedRun
from orchestrator.runtimes.ray import cluster as cluster_module
from orchestrator.runtimes.ray import runtime as module
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.placement import (
    SPREAD,
    STRICT_SPREAD,
    GroupRequest,
    NodeResources,
    missing,
    strategy,
)
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.support.processes import wait_until
from tests.unit.cluster_support import FIELDS
from trainer.node.channel import Answer
from trainer.spec.run_spec import RunSpec

SIZE = NodeResources(cpus=2.0, memory_mb=1024)
BIG, SMALL = {"CPU": 4.0, "memory": 2.0**31}, {"CPU": 4.0, "memory": 2.0**29}


def run(topology: str = "ddp", **fields: Any) -> RunSpec:
    return RunSpec.model_validate({**FIELDS[topology], "nodes": 3, **fields})


def plan(*runs: RunSpec, cold: bool = False) -> LaunchPlan:
    return RayRuntime(cold).plan(runs[0], RunPaths(Path("/out/run")), Path("/data"), runs)


def configured(**options: Any) -> RayRuntime:
    runtime = RayRuntime()
    runtime.configure(RayOptions(**options))
    return runtime


def test_nodes_are_placed_where_they_fit() -> None:
    assert strategy(2, SIZE, [BIG, BIG, SMALL]) == STRICT_SPREAD
    assert strategy(3, SIZE, [BIG, BIG, SMALL]) == SPREAD
    with_gpus = NodeResources(cpus=1.0, memory_mb=64, gpus=2)
    assert with_gpus.bundle() == {"CPU": 1.0, "memory": 64 * 2.0**20, "GPU": 2.0}
    assert [with_gpus.fits(BIG), with_gpus.fits(BIG | {"GPU": 2.0})] == [False, True]
    said = missing(3, SIZE, [BIG, SMALL], {"CPU": 1.0, "memory": 2.0**29})
    assert "2 CPUs, 1024 MiB: 1 of 2 machines can have one, and 1 CPUs, 512 MiB are free" in said


def test_what_ray_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, named in (
        (run("mpi"), "--set transport=gloo"),
        (run("rpc"), "--shared-network"),
        (run(on_loss="continue", strategy="local_sgd", transport="gloo"), "lost rank"),
        (run(restarts=1), "lost rank"),
        (run(node_speed=[1, 1, 0.5]), "node_speed"),
        (run(), "None"),
    ):
        assert named in str(RayRuntime().unsupported_reason(spec))
    assert RayRuntime(shared_network=True).unsupported_reason(run("rpc")) is None
    monkeypatch.setattr(module, "installed", lambda package: None)
    assert "pip install 'shardyard[ray]'" in str(RayRuntime().unavailable_reason())
    assert [finding.status for finding in RayRuntime().findings()] == ["note"]


def test_one_group_fits_all_runs_of_a_sweep_but_cold_ones() -> None:
    runs = [run(nodes=2, cpus=1.0), run(nodes=3, cpus=1.0), run(nodes=1, cpus=2.0, memory_mb=4096)]
    made, cold = plan(*runs), plan(*runs, cold=True)
    assert (made.cluster.shared, made.warm, cold.cluster.shared, cold.warm) == (True, True, False, False)
    group = {"size": 3, "cpus": 2.0, "memory_mb": 4096, "gpus": 0}
    assert made.cluster.request == group
    assert cold.cluster.request == {**group, "size": 2, "cpus": 1.0, "memory_mb": 2048}


def test_address_is_auto_or_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("auto", "head.site:6379", "10.0.0.1:6379"):
        info = configured(address=address).info
        assert (info.remote, info.one_clock) == (True, False)
    assert not configured().info.remote
    for fields in ({"address": "ray://head:1"}, {"address": "head"}, {"raylets": 0}, {"data_dir": "here"}):
        with pytest.raises(ValidationError):
            configured(**fields)
    for address in ("ray://head:10001", "http://head:8265", "local"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"RAY_ADDRESS is '{address}'; allowed: auto, or HOST:PORT"):
            RayRuntime().check_together([run()], Path("/data"))
    configured(address="auto").check_together([run()], Path("/data"))


def test_an_address_without_a_head_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        runtime = configured(address=f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(InputError, match=r"cluster 127\.0\.0\.1:.* cannot be reached"):
            runtime.create(plan(run()))


DRIVER = """
import sys
print({first!r}, flush=True)
for line in sys.stdin:
    kind = line.split('"kind":"')[1].split('"')[0]
    for answer in {answers!r}.get(kind, []):
        print(answer, flush=True)
"""
UP, AGAIN = (Answer(kind="alive", beat=beat, facts={"strategy": SPREAD, "cpus": 8}) for beat in (0, 1))
Drive = Callable[..., module.RayCluster]


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Drive]:
    """Start a cluster with a driver that gives these answers: at first, and to each kind of request."""
    made: list[module.RayCluster] = []
    monkeypatch.setattr(cluster_module, "SESSIONS", tmp_path)
    monkeypatch.setattr(cluster_module, "CONNECT_S", 5.0)
    start = subprocess.Popen

    def started(argv: list[str], **options: Any) -> Any:
        GroupRequest.model_validate_json(argv[-1])
        return start([*argv[:1], "-c", script], **options)

    def drive(first: Answer = UP, **answers: Sequence[Answer]) -> module.RayCluster:
        nonlocal script
        said = {kind: [each.model_dump_json() for each in found] for kind, found in answers.items()}
        script = DRIVER.format(first=first.model_dump_json(), answers=said)
        request = dict(plan(run()).cluster.request)
        made.append(module.RayCluster(None, RayOptions(wait_s=3.0), request, shared=True))
        return made[-1]

    script = ""
    monkeypatch.setattr(subprocess, "Popen", started)
    yield drive
    for each in made:
        each.delete()
    assert [*tmp_path.glob(f"{cluster_module.PREFIX}*")] == []


def run_on(cluster: module.RayCluster, directory: Path) -> LedRun:
    directory.mkdir()
    paths = RunPaths(directory)
    paths.spec.write_text("{}")
    return cluster.run(RayRuntime().plan(run(), paths, Path("/data")))


def test_a_run_waits_for_room_and_then_for_its_ranks(drive: Drive, tmp_path: Path) -> None:
    cluster = drive(run=[Answer(kind="waiting", run=1, reason="no room")])
    assert (cluster.strategy, cluster.cpus) == (SPREAD, 8.0)
    made = run_on(cluster, tmp_path / "run")
    wait_until(lambda: made.wait(0.0).waiting)
    cluster._waits_since = time.monotonic() - 3.5
    assert made.wait(0.0).error == "no room"
    spec = made.paths.spec.resolve()
    site = cluster.site_of(RayRuntime().plan(run(), made.paths, Path("/data")))
    assert site.seen == {str(spec): sha256(b"{}").hexdigest()}
    assert (site.data, site.interface, site.downloads) == ("/data", "", "")


def test_a_driver_that_ends_is_named_and_its_run_repeated(drive: Drive, tmp_path: Path) -> None:
    cluster = drive(beat=[AGAIN])
    assert cluster.ready()
    made = run_on(cluster, tmp_path / "run")
    cluster._process.kill()
    state = wait_until(lambda: (found := made.wait(0.0)).error and found)
    assert (state.error, state.nodes_lost) == ("Ray: Ray's driver was killed by SIGKILL", True)
    made.stop()
    assert (cluster.deleted, cluster.ready()) == (True, False)
    assert cluster.failure == "Ray's driver was killed by SIGKILL"


def test_a_driver_that_cannot_connect_or_a_head_that_is_silent_is_named(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="a cluster on this machine: no cluster"):
        drive(Answer(kind="lost", reason="no cluster"))
    monkeypatch.setattr(cluster_module, "HEAD_S", 0.1)
    of_others = (UP, Answer(kind="alive", run=1), Answer(kind="alive", run=1, beat=1))
    for answers in ([], of_others):
        cluster = drive(beat=answers)
        assert not cluster.ready()
        assert "the head of the Ray cluster did not answer" in str(cluster.failure)


def test_an_answer_to_a_heartbeat_is_found_among_others(drive: Drive) -> None:
    cluster = drive(beat=[UP, Answer(kind="suspended", run=1), AGAIN])
    assert cluster.ready()
