"""The compose files as data: what containers may do, and what a bare `up` trains."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import compose_project
from orchestrator.runtimes.docker.reaper import LABEL
from tests.unit.cluster_support import nodes, registered
from tests.unit.conftest import PROJECT
from trainer.cluster.__main__ import LIMITS
from trainer.cluster.rank_assignment import ROLES, assign_ranks
from trainer.spec.run_spec import RunSpec

COMPOSE = PROJECT / "compose"
SPECS = sorted((COMPOSE / "specs").glob("*.json"))
TOPOLOGIES = sorted(ROLES)
WRITES_ON_THE_HOST = ("coordinator", "data")
Service = dict[str, Any]


@cache
def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def merged(base: Service, over: Service) -> Service:
    """Merge services as compose's `extends` does: mappings and lists are joined, other values replaced."""
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
    """A service merged with all services it extends."""
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


every_service = pytest.mark.parametrize(
    ("topology", "name"), [(topology, name) for topology in TOPOLOGIES for name in services(topology)]
)
every_agent = pytest.mark.parametrize(
    ("topology", "name"), [(topology, name) for topology in TOPOLOGIES for name in ROLES[topology]]
)


# Isolation


@every_service
def test_privileges(topology: str, name: str) -> None:
    service = services(topology)[name]
    exceptions = {"CHOWN", "SETGID", "SETUID"} if name in WRITES_ON_THE_HOST else set()
    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", [])) == exceptions
    assert service["user"] == ("0:0" if exceptions else "10001:10001")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["pull_policy"] == "never"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert not {"ports", "privileged", "devices", "pid", "ipc", "userns_mode"} & service.keys()


@every_service
def test_services_can_be_scaled(topology: str, name: str) -> None:
    service = services(topology)[name]
    assert not {"container_name", "hostname"} & service.keys()
    assert service["restart"] == "no"
    assert service["init"] is True


@every_service
def test_labels(topology: str, name: str) -> None:
    assert services(topology)[name]["labels"][LABEL] == "${SHARDYARD_ORCHESTRATOR_ID:-}"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_network_is_internal_and_labelled(topology: str) -> None:
    networks = load(COMPOSE / f"{topology}.yml")["networks"]
    assert networks == {"run": {"internal": True, "labels": {LABEL: "${SHARDYARD_ORCHESTRATOR_ID:-}"}}}
    others = {"data": (None, "bridge"), "exit-code": (None, "none")}
    for name, service in services(topology).items():
        found = service.get("networks"), service.get("network_mode")
        assert found == others.get(name, (["run"], None)), name


@every_agent
def test_limits_of_agents(topology: str, name: str) -> None:
    service = services(topology)[name]
    assert service["cpus"] == "${SHARDYARD_CPUS:-1}"
    assert service["mem_limit"] == service["memswap_limit"] == "${SHARDYARD_MEMORY_MB:-2048}m"
    assert service["pids_limit"] == "${SHARDYARD_PIDS:-512}"
    assert service["shm_size"] == "${SHARDYARD_SHM_MB:-256}m"


# Read-only unless the variable is set; tests/smoke/test_up.py shows what compose makes of it.
CHECKPOINTS = (
    "${SHARDYARD_CHECKPOINTS:-../docker/no-checkpoints}:/checkpoints:ro${SHARDYARD_CHECKPOINTS:+,rw}"
)


@every_service
def test_mounts(topology: str, name: str) -> None:
    """Only bind mounts, so that no volume outlives a run; agents cannot write to them."""
    writable = {"coordinator": {"/results"}, "data": {"/data"}}
    mounts = services(topology)[name].get("volumes", [])
    bound = [mount for mount in mounts if mount != CHECKPOINTS]
    assert all(mount["type"] == "bind" for mount in bound)
    assert {mount["target"] for mount in bound if not mount.get("read_only")} == writable.get(name, set())
    assert len(mounts) - len(bound) == (name != "exit-code")


def test_directory_without_checkpoints_is_not_empty() -> None:
    """`make_writable_for_nodes` would make an empty one writable for all users."""
    assert list((PROJECT / "docker" / "no-checkpoints").iterdir())


@every_agent
def test_code_of_users_is_mounted_read_only_in_agents_alone(topology: str, name: str) -> None:
    source = "${SHARDYARD_CODE:-../docker/no-code}"
    mounts = services(topology)[name]["volumes"]
    assert {"type": "bind", "source": source, "target": "/code", "read_only": True} in mounts
    assert list((PROJECT / "docker" / "no-code").iterdir())


def test_gpu_overlay_keeps_all_settings() -> None:
    overlay = load(COMPOSE / "gpu.yml")
    assert overlay.keys() == {"services"}
    allowed = {"node": {"environment", "deploy"}, "coordinator": {"volumes"}, "data": {"volumes"}}
    assert {name: set(service) for name, service in overlay["services"].items()} == allowed


LINK = COMPOSE / "link.yml"
PLUGS = {"type": "volume", "source": "plugs", "target": "/run/switch"}


@pytest.mark.parametrize(
    ("name", "user", "capabilities"), [("switch", "10001:10001", []), ("plug", "0:0", ["NET_ADMIN"])]
)
def test_privileges_of_links(name: str, user: str, capabilities: list[str]) -> None:
    service = resolved(LINK, name)
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == capabilities
    assert service["user"] == user
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["labels"][LABEL] == "${SHARDYARD_ORCHESTRATOR_ID:-}"
    assert service.get("devices", []) == (["/dev/net/tun"] if capabilities else [])
    assert service["network_mode"] == ("container:${SHARDYARD_NODE:-none}" if capabilities else "none")
    assert service["volumes"] == [PLUGS]
    assert {"mem_limit", "pids_limit"} <= service.keys()
    assert not {"ports", "privileged", "pid", "ipc", "userns_mode", "networks"} & service.keys()


def test_link_overlay_leaves_nodes_as_they_are() -> None:
    overlay = load(LINK)
    assert overlay["services"].keys() == {"switch", "plug", "coordinator"}
    assert overlay["services"]["coordinator"] == {
        "depends_on": {"switch": {"condition": "service_started"}}
    }
    assert overlay["services"]["plug"]["profiles"] == ["plug"], "`up` starts none"


def test_plugs_meet_the_switch_in_memory() -> None:
    (volume,) = load(LINK)["volumes"].values()
    assert volume["driver_opts"]["type"] == "tmpfs"
    assert volume["labels"] == {LABEL: "${SHARDYARD_ORCHESTRATOR_ID:-}"}


# Order


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_data_starts_first_and_the_coordinator_last(topology: str) -> None:
    found, roles = services(topology), set(ROLES[topology])
    completed = {"condition": "service_completed_successfully"}
    assert "depends_on" not in found["data"]
    assert all(found[role]["depends_on"] == {"data": completed} for role in roles)
    assert found["coordinator"]["depends_on"] == {role: {"condition": "service_started"} for role in roles}
    assert found["exit-code"]["depends_on"] == dict.fromkeys(roles | {"coordinator"}, completed)


# Variables


def variables() -> dict[str, set[str]]:
    """The defaults of each variable in the compose files, without comments."""
    found: dict[str, set[str]] = {}
    for path in COMPOSE.glob("*.yml"):
        text = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text())
        for name, default in re.findall(r"\$\{(SHARDYARD_\w+):-((?:\$\{[^}]*\}|[^}])*)\}", text):
            found.setdefault(name, set()).add(default)
        assert len(re.findall(r"\$\{SHARDYARD_\w+[^:\w]", text)) == 0, f"{path.name}: one without a default"
    return found


def test_variables_are_documented_or_set_by_the_orchestrator() -> None:
    header = (COMPOSE / "common.yml").read_text().partition("services:")[0]
    documented = set(re.findall(r"SHARDYARD_\w+", header))
    run = RunSpec.model_validate({"strategy": "ddp"})
    of_a_run = set(compose_project(run, RunPaths(Path("/r")), Path("/d"), "", cores=1).environment)
    of_the_image = {"SHARDYARD_SOURCE"}  # orchestrator/runtimes/docker/image.py
    of_a_plug = {"SHARDYARD_NODE"}  # orchestrator/runtimes/docker/project.py
    assert variables().keys() == documented | of_a_run | of_the_image | of_a_plug


def test_limits_have_the_defaults_of_the_spec() -> None:
    found = variables()
    for field, (name, kind) in LIMITS.items():
        assert {kind(default) for default in found[name]} == {RunSpec.model_fields[field].default}


# The runs of a bare `up`


def test_every_topology_has_a_spec() -> None:
    assert {path.stem for path in SPECS} == {*TOPOLOGIES, "gpu"}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_spec_is_valid_at_any_scale_and_needs_no_download(path: Path, count: int) -> None:
    fields = json.loads(path.read_text())
    topology = "ddp" if path.stem == "gpu" else path.stem
    spec = assign_ranks(topology, fields, registered(topology, *range(1, count + 1))).spec
    assert spec.nodes == count + (topology == "rpc")
    assert not spec.dataset.files


def test_gpu_spec_uses_gpus() -> None:
    fields = json.loads((COMPOSE / "specs" / "gpu.json").read_text())
    assert assign_ranks("ddp", fields, nodes(1, 2)).spec.on_gpu
