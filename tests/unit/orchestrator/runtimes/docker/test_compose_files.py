"""Mistakes in the compose files: what containers may do and see, their order, what a bare `up` trains."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.compose import compose_project, placed
from orchestrator.runtimes.docker.reaper import LABEL
from tests.unit.cluster_support import FIELDS, registered
from tests.unit.conftest import PROJECT
from tests.unit.docker_support import FAST
from trainer.node.__main__ import LIMITS
from trainer.node.commands import environment
from trainer.node.home import CONTAINER
from trainer.node.rank_assignment import ROLES, AssignmentError, assign_ranks
from trainer.spec.run_spec import RunSpec

COMPOSE = PROJECT / "compose"
OWNER = {LABEL: "${SHARDYARD_ORCHESTRATOR_ID:-}"}
CONFINED = {
    "cap_drop": ["ALL"],
    "read_only": True,
    "security_opt": ["no-new-privileges:true"],
    "init": True,
}
CONFINED |= {"restart": "no", "pull_policy": "never", "labels": OWNER}
FORBIDDEN = {"ports", "privileged", "pid", "ipc", "userns_mode", "container_name", "hostname"}
NODE, ROOT = {"user": "10001:10001"}, {"user": "0:0", "cap_add": ["CHOWN", "SETGID", "SETUID"]}
MEMORY = "${SHARDYARD_MEMORY_MB:-2048}m"
LIMITED = {"cpus": "${SHARDYARD_CPUS:-1}", "mem_limit": MEMORY, "memswap_limit": MEMORY}
LIMITED |= {"pids_limit": "${SHARDYARD_PIDS:-512}", "shm_size": "${SHARDYARD_SHM_MB:-256}m"}
WRITABLE = {"coordinator": ["/results"], "data": ["/data"]}
# Read-only unless the variable is set; tests/smoke/test_up.py shows what compose makes of it.
NO_CHECKPOINTS = "${SHARDYARD_CHECKPOINTS:-../docker/no-checkpoints}"
CHECKPOINTS = f"{NO_CHECKPOINTS}:/checkpoints:ro${{SHARDYARD_CHECKPOINTS:+,rw}}"
CODE = {"source": "${SHARDYARD_CODE:-../docker/no-code}", "target": "/code", "read_only": True}
Service = dict[str, Any]


@cache
def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def merged(base: Service, over: Service) -> Service:
    """Merge services as compose's `extends` does: mappings and lists are joined, other values replaced."""
    result = {**base, **over}
    for key in (base.keys() & over.keys()) - {"command", "entrypoint"}:
        if isinstance(over[key], dict):
            result[key] = {**base[key], **over[key]}
        elif isinstance(over[key], list):
            result[key] = [*base[key], *over[key]]
    return result


def resolved(path: Path, name: str) -> Service:
    """A service merged with all services it extends."""
    own = dict(load(path)["services"][name])
    if extended := own.pop("extends", None):
        return merged(resolved(path.parent / extended.get("file", path.name), extended["service"]), own)
    return own


@cache
def services(topology: str) -> dict[str, Service]:
    path = COMPOSE / f"{topology}.yml"
    return {name: resolved(path, name) for name in load(path)["services"]}


EVERY = [(topology, name, each) for topology in ROLES for name, each in services(topology).items()]


def privileges(service: Service) -> Service:
    """What a service may do beyond what all may."""
    assert not FORBIDDEN & service.keys()
    assert service.items() >= CONFINED.items()
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    return {key: service[key] for key in ("user", "cap_add", "devices") if key in service}


def test_privileges() -> None:
    for topology, name, service in EVERY:
        assert privileges(service) == (ROOT if name in WRITABLE else NODE), (topology, name)
        assert name not in ROLES[topology] or service.items() >= LIMITED.items(), (topology, name)


def test_network_is_internal_and_labelled() -> None:
    others = {"data": (None, "bridge"), "exit-code": (None, "none")}
    for topology, name, service in EVERY:
        assert load(COMPOSE / f"{topology}.yml")["networks"] == {"run": {"internal": True, "labels": OWNER}}
        found = service.get("networks"), service.get("network_mode")
        assert found == others.get(name, (["run"], None)), (topology, name)


def test_mounts() -> None:
    """Only bind mounts, so that no volume outlives a run; agents cannot write to them."""
    for topology, name, service in EVERY:
        mounts = service.get("volumes", [])
        bound = [mount for mount in mounts if mount != CHECKPOINTS]
        assert all(mount["type"] == "bind" for mount in bound)
        written = [mount["target"] for mount in bound if not mount.get("read_only")]
        assert written == WRITABLE.get(name, []), (topology, name)
        assert len(mounts) - len(bound) == (name != "exit-code"), (topology, name)
        assert ({"type": "bind", **CODE} in bound) == (name in ROLES[topology]), (topology, name)
    for empty in ("no-checkpoints", "no-code"):  # `make_writable_for_nodes` would open an empty one to all
        assert list((PROJECT / "docker" / empty).iterdir()), empty


def test_gpu_overlay_keeps_all_settings() -> None:
    allowed = {"node": {"environment", "deploy"}, "coordinator": {"volumes"}, "data": {"volumes"}}
    ((key, overlay),) = load(COMPOSE / "gpu.yml").items()
    assert (key, {name: set(service) for name, service in overlay.items()}) == ("services", allowed)


def test_link_overlay_adds_a_confined_switch_and_leaves_nodes_as_they_are() -> None:
    path = COMPOSE / "link.yml"
    overlay, switch, plug = load(path), resolved(path, "switch"), resolved(path, "plug")
    assert privileges(switch) == NODE
    assert privileges(plug) == {"user": "0:0", "cap_add": ["NET_ADMIN"], "devices": ["/dev/net/tun"]}
    modes = {"none": switch, "container:${SHARDYARD_NODE:-none}": plug}
    for mode, service in modes.items():
        assert (service["network_mode"], "networks" in service) == (mode, False)
        assert service["volumes"] == [{"type": "volume", "source": "plugs", "target": "/run/switch"}]
        assert {"mem_limit", "pids_limit"} <= service.keys()
    assert overlay["services"].keys() == {"switch", "plug", "coordinator"}
    after = {"depends_on": {"switch": {"condition": "service_started"}}}
    assert (overlay["services"]["coordinator"], plug["profiles"]) == (after, ["plug"]), (
        "`up` starts no plug"
    )
    (volume,) = overlay["volumes"].values()
    assert (volume["driver_opts"]["type"], volume["labels"]) == ("tmpfs", OWNER)


def test_data_starts_first_and_the_coordinator_last() -> None:
    completed = {"condition": "service_completed_successfully"}
    for topology, roles in ROLES.items():
        found = {name: service.get("depends_on") for name, service in services(topology).items()}
        assert found == {
            "data": None,
            "exit-code": dict.fromkeys([*roles, "coordinator"], completed),
            **{role: {"data": completed} for role in roles},
            "coordinator": {role: {"condition": "service_started"} for role in roles},
        }


def test_variables_have_defaults_and_are_documented_or_set_by_the_orchestrator() -> None:
    defaults: dict[str, set[str]] = {}
    for path in COMPOSE.glob("*.yml"):
        text = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text())
        for name, default in re.findall(r"\$\{(SHARDYARD_\w+):-((?:\$\{[^}]*\}|[^}])*)\}", text):
            defaults.setdefault(name, set()).add(default)
        assert not re.findall(r"\$\{SHARDYARD_\w+[^:\w]", text), f"{path.name}: one without a default"
    documented = re.findall(
        r"SHARDYARD_\w+", (COMPOSE / "common.yml").read_text().partition("services:")[0]
    )
    run = RunSpec.model_validate({"strategy": "ddp"})
    project = compose_project(run, RunPaths(Path("/r")), Path("/d"), "", cores=1)
    of_a_run = placed(project, Path("/r/warm"), 1, warm=False).environment
    of_image_and_plug = {"SHARDYARD_SOURCE", "SHARDYARD_NODE"}  # set in image.py and project.py
    assert defaults.keys() == {*documented, *of_a_run, *of_image_and_plug}
    for field, (name, kind) in LIMITS.items():
        assert {kind(default) for default in defaults[name]} == {RunSpec.model_fields[field].default}


def test_every_topology_has_a_valid_spec_at_any_scale_that_needs_no_download() -> None:
    specs = {path.stem: json.loads(path.read_text()) for path in (COMPOSE / "specs").glob("*.json")}
    assert specs.keys() == {*ROLES, "gpu"}
    for name, fields in specs.items():
        topology = "ddp" if name == "gpu" else name
        for count in (1, 2, 5):
            spec = assign_ranks(topology, fields, registered(topology, *range(1, count + 1))).spec
            assert (spec.nodes, spec.on_gpu) == (count + (name == "rpc"), name == "gpu")
            assert not spec.dataset.files


def test_a_bare_up_has_no_links_and_ranks_know_the_nodes_behind_a_switch() -> None:
    agents = registered("ddp", 1, 2, 3)
    with pytest.raises(AssignmentError, match="link"):
        assign_ranks("ddp", {**FIELDS["ddp"], "link": FAST}, agents, {"cpus": 1.0})
    for link, linked in ((FAST, "10.0.0.2,10.0.0.3"), (None, None)):
        assignment = assign_ranks("ddp", {**FIELDS["ddp"], "link": link}, agents)
        assert environment(assignment, CONTAINER, pid=1).get("SHARDYARD_LINKED") == linked
