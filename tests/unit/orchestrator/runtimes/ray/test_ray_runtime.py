"""Runtime `ray` without Ray: what it refuses, what it asks Ray for, and what it believes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.ray import runtime as module
from orchestrator.runtimes.ray.driver_client import Reply
from orchestrator.runtimes.ray.options import RayOptions
from orchestrator.runtimes.ray.placement import SPREAD, STRICT_SPREAD, NodeResources, missing, strategy
from orchestrator.runtimes.ray.run import shares
from orchestrator.runtimes.ray.runtime import RayRuntime
from tests.unit.cluster_support import FIELDS
from trainer.spec.run_spec import RunSpec

NODE = NodeResources(cpus=2.0, memory_mb=1024)
BIG = {"CPU": 4.0, "memory": 2.0**31}
SMALL = {"CPU": 4.0, "memory": 2.0**29}


def run(topology: str = "ddp", **fields: Any) -> RunSpec:
    return RunSpec.model_validate({**FIELDS[topology], "nodes": 3, **fields})


def plan(*runs: RunSpec, cold: bool = False) -> LaunchPlan:
    return RayRuntime(cold).plan(runs[0], RunPaths(Path("/out/run")), Path("/data"), runs)


def test_nodes_are_strictly_spread_over_machines_that_can_have_one() -> None:
    assert strategy(2, NODE, [BIG, BIG, SMALL]) == STRICT_SPREAD
    assert strategy(3, NODE, [BIG, BIG, SMALL]) == SPREAD


def test_a_gpu_is_needed_by_nodes_that_ask_for_one() -> None:
    node = NodeResources(cpus=1.0, memory_mb=64, gpus=2)
    assert node.bundle() == {"CPU": 1.0, "memory": 64 * 2.0**20, "GPU": 2.0}
    assert not node.fits(BIG)
    assert node.fits(BIG | {"GPU": 2.0})


def test_what_is_missing_names_what_is_asked_for_and_what_is_free() -> None:
    text = missing(3, NODE, [BIG, SMALL], {"CPU": 1.0, "memory": 2.0**29})
    assert "3 nodes of 2 CPUs, 1024 MiB" in text
    assert "1 of 2 machines can have one" in text
    assert "1 CPUs, 512 MiB are free" in text


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (run("mpi"), "--set transport=gloo"),
        (run("rpc"), "--shared-network"),
        (run(on_loss="continue", strategy="local_sgd", transport="gloo"), "lost rank"),
        (run(node_speed=[1, 1, 0.5]), "node_speed"),
    ],
)
def test_what_ray_cannot_do_is_refused(spec: RunSpec, named: str) -> None:
    assert named in str(RayRuntime().unsupported_reason(spec))


def test_ddp_runs_and_rpc_if_it_is_permitted() -> None:
    assert RayRuntime().unsupported_reason(run()) is None
    assert RayRuntime(shared_network=True).unsupported_reason(run("rpc")) is None


def test_a_machine_without_ray_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda package: None)
    assert "pip install 'shardyard[ray]'" in str(RayRuntime().unavailable_reason())
    (finding,) = RayRuntime().findings()
    assert (finding.status, "pip install" in finding.detail) == ("note", True)


def test_one_group_fits_all_runs_of_a_sweep() -> None:
    made = plan(run(nodes=2, cpus=1.0), run(nodes=3, cpus=2.0, memory_mb=4096))
    assert (made.cluster.shared, made.warm) == (True, True)
    assert json.loads(str(made.cluster.script)) == {"size": 3, "cpus": 2.0, "memory_mb": 4096, "gpus": 0}


def test_a_cold_run_has_a_group_of_its_own() -> None:
    made = plan(run(nodes=2), run(nodes=3), cold=True)
    assert (made.cluster.shared, made.warm, made.cluster.size) == (False, False, 2)


def test_ranks_get_nothing_that_holds_on_this_machine_only() -> None:
    made = plan(run(nodes=2, processes_per_node=2))
    first, second = shares(made)
    assert [each["environment"]["RANK"] for each in (*first, *second)] == ["0", "1", "2", "3"]
    for variables in (each["environment"] for each in (*first, *second)):
        assert not {*variables} & {"PYTHONPATH", "SHARDYARD_RENDEZVOUS", "GLOO_SOCKET_IFNAME"}
        assert variables["SHARDYARD_END_WITH_PARENT"] == "1"
    assert {each["log"] for each in first} == {"/out/run/node-0.log"}


@pytest.mark.parametrize("address", ["auto", "head.site:6379", "10.0.0.1:6379"])
def test_an_address_is_auto_or_host_and_port(address: str) -> None:
    assert RayOptions(address=address).address == address


@pytest.mark.parametrize(
    "fields", [{"address": "ray://head:10001"}, {"address": "head"}, {"raylets": 0}, {"data_dir": "here"}]
)
def test_other_options_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RayOptions(**fields)


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "local"])
def test_other_addresses_of_the_environment_are_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"RAY_ADDRESS is '{address}'; allowed: auto, or HOST:PORT"):
        RayRuntime().check_together([run()], Path("/data"))
    chosen = RayRuntime()
    chosen.configure(RayOptions(address="auto"))
    chosen.check_together([run()], Path("/data"))


def test_an_address_without_a_head_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        runtime = RayRuntime()
        runtime.configure(RayOptions(address=f"127.0.0.1:{unused.getsockname()[1]}"))
        with pytest.raises(InputError, match=r"cluster 127\.0\.0\.1:.* cannot be reached"):
            runtime.create(plan(run()))


def test_a_cluster_of_others_is_remote_and_has_several_clocks() -> None:
    runtime = RayRuntime()
    runtime.configure(RayOptions(address="head:6379"))
    assert (runtime.info.remote, runtime.info.one_clock) == (True, False)
    runtime.configure(RayOptions())
    assert (runtime.info.remote, runtime.info.one_clock) == (False, True)


@pytest.mark.parametrize(
    "fields", [{"exits": {"node 0": 300}}, {"nodes": [{"machine": "m"}]}, {"other": 1}]
)
def test_an_answer_of_nodes_is_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Reply(**fields)
