"""The compose files as data: what every container may do, and what it may not."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import cluster
from orchestrator.runtimes.docker.reaper import LABEL
from tests.unit.cluster_support import OTHER, nodes, registered
from tests.unit.conftest import PROJECT
from trainer.cluster.__main__ import LIMITS
from trainer.cluster.rank_assignment import ROLES, assign_ranks
from trainer.spec.run_spec import RunSpec

COMPOSE = PROJECT / "compose"
TOPOLOGIES = sorted(ROLES)
Service = dict[str, Any]


@cache
def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def merged(base: Service, over: Service) -> Service:
    """As compose merges a service into the one that it extends: mappings and lists grow, the rest goes."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            result[key] = {**before, **value}
        elif isinstance(before, list) and isinstance(value, list) and key not in ("command", "entrypoint"):
            result[key] = [*before, *value]
        else:
            result[key] = value
    return result


def resolved(path: Path, name: str) -> Service:
    """A service with all that it extends."""
    service = load(path)["services"][name]
    extended = service.get("extends")
    own = {key: value for key, value in service.items() if key != "extends"}
    if extended is None:
        return own
    return merged(resolved(path.parent / extended.get("file", path.name), extended["service"]), own)


@cache
def services(topology: str) -> dict[str, Service]:
    path = COMPOSE / f"{topology}.yml"
    return {name: resolved(path, name) for name in load(path)["services"]}


EVERY = [(topology, name) for topology in TOPOLOGIES for name in services(topology)]


def test_there_is_a_file_for_every_topology_and_no_other() -> None:
    files = {path.stem for path in COMPOSE.glob("*.yml")}
    assert files == {*TOPOLOGIES, "common", "gpu"}
    names = [load(COMPOSE / f"{topology}.yml")["name"] for topology in TOPOLOGIES]
    assert names == [f"shardyard-{topology}" for topology in TOPOLOGIES]


@pytest.mark.parametrize(("topology", "name"), EVERY)
def test_a_container_has_nothing_to_give_away(topology: str, name: str) -> None:
    service = services(topology)[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["restart"] == "no"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["pull_policy"] == "never"
    for key in ("ports", "privileged", "devices", "pid", "ipc", "userns_mode"):
        assert key not in service
    exceptions = {"CHOWN", "SETGID", "SETUID"} if name in ("coordinator", "data") else set()
    assert set(service.get("cap_add", [])) == exceptions
    assert service["user"] == ("0:0" if exceptions else "10001:10001")


@pytest.mark.parametrize(("topology", "name"), EVERY)
def test_everything_that_is_started_carries_the_label(topology: str, name: str) -> None:
    assert services(topology)[name]["labels"][LABEL] == "${SHARDYARD_ORCHESTRATOR_ID:-}"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_network_has_no_way_out_and_carries_the_label(topology: str) -> None:
    networks = load(COMPOSE / f"{topology}.yml")["networks"]
    assert networks == {"run": {"internal": True, "labels": {LABEL: "${SHARDYARD_ORCHESTRATOR_ID:-}"}}}
    for name, service in services(topology).items():
        where = service.get("networks"), service.get("network_mode")
        outside = {"data": (None, "bridge"), "verdict": (None, "none")}
        assert where == outside.get(name, (["run"], None)), name


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_head_comes_last_and_the_data_first(topology: str) -> None:
    found = services(topology)
    roles = set(ROLES[topology])
    assert roles == {"node", *([OTHER[topology]] if topology in OTHER else [])}
    assert found.keys() == roles | {"coordinator", "data", "verdict"}
    assert found["coordinator"]["depends_on"] == {role: {"condition": "service_started"} for role in roles}
    done = {"condition": "service_completed_successfully"}
    assert all(found[role]["depends_on"] == {"data": done} for role in roles)
    assert found["verdict"]["depends_on"] == dict.fromkeys(roles | {"coordinator"}, done)
    assert "depends_on" not in found["data"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_member_is_told_its_role_and_topology(topology: str) -> None:
    found = services(topology)
    for role in (*ROLES[topology], "coordinator"):
        assert found[role]["command"] == [role]
        assert found[role]["environment"]["SHARDYARD_TOPOLOGY"] == topology
    assert found["data"]["command"] == ["${SHARDYARD_FETCH:-data}"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_scales_is_the_service_node(topology: str) -> None:
    scaled = {name: each["scale"] for name, each in services(topology).items() if "scale" in each}
    assert scaled == ({"node": 2} if topology == "rpc" else {})
    for each in services(topology).values():
        assert not {"container_name", "hostname"} & each.keys()  # of which there can be one only
        assert "replicas" not in each.get("deploy", {})


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_who_trains_is_within_its_limits(topology: str) -> None:
    for role in ROLES[topology]:
        member = services(topology)[role]
        assert member["cpus"] == "${SHARDYARD_CPUS:-1}"
        assert member["mem_limit"] == member["memswap_limit"] == "${SHARDYARD_MEMORY_MB:-2048}m"
        assert member["pids_limit"] == "${SHARDYARD_PIDS:-512}"
        assert member["shm_size"] == "${SHARDYARD_SHM_MB:-256}m"
        assert "healthcheck" not in member  # the image's own


# Read-only unless a place is named: what compose makes of it is seen in tests/smoke/test_up.py.
CHECKPOINTS = (
    "${SHARDYARD_CHECKPOINTS:-../docker/no-checkpoints}:/checkpoints:ro${SHARDYARD_CHECKPOINTS:+,rw}"
)


def mounts(service: Service) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by target; of all but checkpoints."""
    written_out = [each for each in service["volumes"] if each != CHECKPOINTS]
    for each in written_out:
        assert each["type"] == "bind"  # nothing outlives a run in a volume
    return {each["target"]: (each["source"], each.get("read_only", False)) for each in written_out}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_mounts(topology: str) -> None:
    found = services(topology)
    spec = {"/spec.json": (f"${{SHARDYARD_SPEC:-specs/{topology}.json}}", True)}
    data, results = "${SHARDYARD_DATA:-../data}", "${SHARDYARD_RESULTS:-../results}"
    for role in ROLES[topology]:
        assert mounts(found[role]) == {"/data": (data, True)}
    assert mounts(found["coordinator"]) == {"/results": (results, False), **spec}
    assert mounts(found["data"]) == {"/data": (data, False), **spec}
    for role in (*ROLES[topology], "coordinator", "data"):
        assert CHECKPOINTS in found[role]["volumes"]
    assert "volumes" not in found["verdict"]


def test_there_is_no_place_for_checkpoints_that_nobody_has_named() -> None:
    """A directory that holds something is not opened to nodes: see test_cluster_node.py."""
    assert list((PROJECT / "docker" / "no-checkpoints").iterdir())


def test_the_default_cluster_is_ddp() -> None:
    default = load(PROJECT / "docker-compose.yml")
    assert default == {"name": "shardyard", "include": ["compose/ddp.yml"]}


def test_the_overlay_for_gpus_adds_devices_and_another_spec_and_takes_nothing_away() -> None:
    overlay = load(COMPOSE / "gpu.yml")
    assert overlay.keys() == {"services"}
    assert overlay["services"].keys() == {"node", "coordinator", "data"}
    node, *others = [overlay["services"][name] for name in ("node", "coordinator", "data")]
    assert node.keys() <= {"environment", "deploy"}
    (device,) = node["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    for service in others:
        spec = {"/spec.json": ("${SHARDYARD_SPEC:-specs/gpu.json}", True)}
        assert (service.keys(), mounts(service)) == ({"volumes"}, spec)


# Variables


def variables() -> dict[str, set[str]]:
    """The default of each variable in the compose files; comments are no place to use one."""
    found: dict[str, set[str]] = {}
    for path in COMPOSE.glob("*.yml"):
        text = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text())
        for name, default in re.findall(r"\$\{(SHARDYARD_\w+):-((?:\$\{[^}]*\}|[^}])*)\}", text):
            found.setdefault(name, set()).add(default)
        assert len(re.findall(r"\$\{SHARDYARD_\w+[^:\w]", text)) == 0, f"{path.name}: one without a default"
    return found


def test_every_variable_is_known() -> None:
    header = (COMPOSE / "common.yml").read_text().partition("services:")[0]
    documented = set(re.findall(r"SHARDYARD_\w+", header))
    run = RunSpec.model_validate({"strategy": "ddp"})
    told = set(cluster(run, RunPaths(Path("/r")), Path("/d"), "", cores=1).environment)
    of_the_image = {"SHARDYARD_SOURCE"}  # orchestrator/runtimes/docker/image.py
    assert variables().keys() == documented | told | of_the_image


def test_limits_have_the_spec_s_defaults() -> None:
    found = variables()
    for field, (name, kind) in LIMITS.items():
        assert {kind(default) for default in found[name]} == {RunSpec.model_fields[field].default}


# The runs of a bare `up`


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_default_run_of_every_topology_is_valid_at_any_scale(topology: str, count: int) -> None:
    fields = json.loads((COMPOSE / "specs" / f"{topology}.json").read_text())
    assignment = assign_ranks(topology, fields, registered(topology, *range(1, count + 1)))
    assert assignment.spec.nodes == count + (topology == "rpc")


def test_the_default_run_on_gpus_is_valid() -> None:
    fields = json.loads((COMPOSE / "specs" / "gpu.json").read_text())
    assert assign_ranks("ddp", fields, nodes(1, 2)).spec.on_gpu
    assert {path.stem for path in (COMPOSE / "specs").glob("*.json")} == {*TOPOLOGIES, "gpu"}
