"""Mistakes in what runtime `ray` refuses, asks Ray for, tells nodes and believes. Ray is not needed."""

from __future__ import annotations

import json
import socket
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.ray import run as ray_run
from orchestrator.runtimes.ray import runtime as module
from orchestrator.runtimes.ray.driver_client import DriverError, NodeDescription, Reply
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.placement import SPREAD, STRICT_SPREAD, NodeResources, missing, strategy
from orchestrator.runtimes.ray.run import shares
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.unit.cluster_support import FIELDS
from tests.unit.conftest import FakeTime
from trainer.core.events import events_name
from trainer.core.sources import own_digest
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
    assert json.loads(str(made.cluster.script)) == group
    assert json.loads(str(cold.cluster.script)) == {**group, "size": 2, "cpus": 1.0, "memory_mb": 2048}


def test_ranks_get_nothing_that_holds_on_this_machine_only() -> None:
    first, second = shares(plan(run(nodes=2, processes_per_node=2)))
    assert [each["environment"]["RANK"] for each in (*first, *second)] == ["0", "1", "2", "3"]
    for variables in (each["environment"] for each in (*first, *second)):
        assert not {*variables} & {"PYTHONPATH", "SHARDYARD_RENDEZVOUS", "GLOO_SOCKET_IFNAME"}
        assert variables["SHARDYARD_END_WITH_PARENT"] == "1"
    assert {each["log"] for each in first} == {"/out/run/node-0.log"}


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


@pytest.fixture
def driver() -> Mock:
    return Mock(**{"failure.return_value": None, "ask.side_effect": [Reply(group=7, strategy=SPREAD)]})


@pytest.fixture
def started(driver: Mock, tmp_path: Path) -> ray_run.RayRun:
    """A run of two nodes."""
    paths, spec = RunPaths(tmp_path), run(nodes=2)
    paths.spec.write_text("{}")
    options = RayOptions(wait_s=40.0, data_dir="/far")
    made = RayRuntime().plan(spec, paths, Path("/data"), [spec])
    return ray_run.RayCluster(driver, {"size": 2}, options).run(made)


NODE = NodeDescription(machine="m", address="a", sources=own_digest())
NODES = Reply(nodes=[NODE, NODE], strategy=STRICT_SPREAD)


def test_a_run_waits_for_room_then_for_nodes_and_then_for_its_ranks(
    started: ray_run.RayRun, driver: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, late = FakeTime(started._asked_at), "Ray did not start the nodes within 90 s"
    monkeypatch.setattr(ray_run, "time", SimpleNamespace(monotonic=clock))
    other = NODE.model_copy(update={"sources": "x"})
    for seconds, answer, state in (
        (40.0, Reply(missing="no room"), RunState({}, 1, waiting=True)),
        (0.5, Reply(missing="no room"), RunState({}, 1, "no room", waiting=True)),
        (0.0, Reply(), RunState({}, 1, waiting=True)),  # since when there is room
        (90.0, Reply(), RunState({}, 1, waiting=True)),
        (0.5, Reply(), RunState({}, 1, late, waiting=True)),
        (0.0, NODES, RunState({}, 1)),
        (0.0, Reply(exits={"node 0": -9}), RunState({"node 0": -9}, 1)),
        (0.0, Reply(exits={"node 0": 0}, lost="no m"), RunState({"node 0": 0}, 1, "no m", True)),
        (0.0, DriverError("no answer"), RunState({"node 0": 0}, 0, "Ray: no answer", True)),
    ):
        clock.pass_(seconds)
        driver.ask.side_effect = [answer, Reply()]
        assert started.wait(3.0) == state
        if answer is NODES:
            plan, cluster = started._plan, started._cluster
            asked = {"spec": str(plan.paths.spec), "digest": sha256(b"{}").hexdigest(), "files": []}
            asked |= {"data": "/data", "downloads": "/far"}
            start = {"group": 7, "run": asked, "shares": shares(plan), "warm": True}
            assert driver.ask.call_args == call("start", **start)
            assert cluster.strategy == STRICT_SPREAD
    assert driver.ask.call_args == call("wait", group=7, timeout_s=3.0)
    assert (cluster.ready(), cluster.failure) == (False, "no m")
    driver.ask.side_effect = [NODES.model_copy(update={"nodes": [NODE, other]})]
    error = f"m has a trainer of sources x, and not {NODE.sources}"
    assert ray_run.RayRun(cluster, plan, RayOptions()).wait(1.0) == RunState({}, 0, error)


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_ends_with_its_ranks_or_else_with_all_nodes(
    started: ray_run.RayRun, driver: Mock, lost: bool
) -> None:
    started.stop()
    assert driver.ask.call_count == 1  # nothing runs
    paths, cluster = started._plan.paths, started._cluster
    driver.ask.side_effect = [NODES, *3 * [Reply()], DriverError("no answer") if lost else Reply(), Reply()]
    states = [started.wait(1.0)]
    (paths.live / paths.weights.name).write_text("none are asked for")
    states += [started.wait(1.0)]
    (paths.live / paths.weights.name).unlink()
    (paths.live / events_name(1)).unlink()
    started.new_events()
    states += [started.wait(1.0)]
    assert [bool(each.error) for each in states] == [False, True, True]
    (paths.live / paths.usage.name).symlink_to(paths.spec)
    for _ in range(2):
        started.stop()
        cluster.delete()
    started.collect()
    assert not paths.usage.is_symlink()
    words = [each.args[0] for each in driver.ask.call_args_list]
    assert words == ["create", "nodes", "start", "wait", "wait", "stop", *([] if lost else ["delete"])]
    assert driver.close.call_count == lost


def test_an_answer_of_nodes_is_checked() -> None:
    for fields in ({"exits": {"a": 256}}, {"exits": {"a": -256}}, {"nodes": [{"machine": "m"}]}):
        with pytest.raises(ValidationError):
            Reply.model_validate(fields)
