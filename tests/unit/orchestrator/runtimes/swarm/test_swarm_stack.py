"""The stack file of a run: what a stack cannot express is replaced, refused or left out by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from orchestrator.runtimes.swarm.options import SwarmOptions
from orchestrator.runtimes.swarm.stack import (
    KEPT,
    LEFT_OUT,
    NOT_DEPLOYED,
    REPLACED,
    Placed,
    StackError,
    to_text,
)
from orchestrator.runtimes.swarm.stack import stack as make
from orchestrator.shipped import COMPOSE

NODE: dict[str, Any] = {
    "image": "shardyard-trainer",
    "command": ["node"],
    "entrypoint": None,
    "init": True,
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "restart": "no",
    "stop_grace_period": "5s",
    "pull_policy": "never",
    "user": "10001:10001",
    "cpus": 2,
    "mem_limit": "1073741824",
    "memswap_limit": "1073741824",
    "pids_limit": 512,
    "shm_size": "268435456",
    "environment": {"SHARDYARD_TOPOLOGY": "ddp"},
    "labels": {"shardyard.orchestrator": "me"},
    "tmpfs": ["/tmp:mode=1777,size=256m", "/run/shardyard:mode=1777,size=512m"],
    "depends_on": {"data": {}},
    "networks": {"run": None},
    "volumes": [
        {"type": "bind", "source": "/home/me/data", "target": "/data", "read_only": True},
        {"type": "bind", "source": "/none", "target": "/code", "read_only": True},
        {"type": "bind", "source": "/none", "target": "/checkpoints", "read_only": True},
    ],
}
COORDINATOR: dict[str, Any] = {
    **{key: NODE[key] for key in ("image", "init", "read_only", "cap_drop", "security_opt", "restart")},
    "command": ["coordinator"],
    "user": "0:0",
    "cap_add": ["CHOWN"],
    "healthcheck": {"disable": True},
    "mem_limit": "268435456",
    "pids_limit": 64,
    "environment": {"SHARDYARD_SPEC": "/spec.json"},
    "volumes": [
        {"type": "bind", "source": "/home/me/results/run", "target": "/results"},
        {"type": "bind", "source": "/home/me/results/run/spec.json", "target": "/spec.json"},
    ],
}
CONFIG = {"services": {"node": NODE, "coordinator": COORDINATOR, "data": {"build": "."}, "exit-code": {}}}
PLACED = Placed(
    image="sha256:12",
    entrypoint=["python", "-m", "trainer.cluster"],
    manager="m1",
    replicas=3,
    cpus=1.5,
    owner="1234 86400",
    spec="/home/me/results/run/spec.json",
    user=(1000, 1001),
    code={"a/net.py": "/home/me/results/code/a/net.py"},
    data=False,
    options=SwarmOptions(),
)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return make(CONFIG, PLACED)


def config(**changes: Any) -> dict[str, Any]:
    return {"services": {"node": {**NODE, **changes}, "coordinator": COORDINATOR}}


def test_only_what_a_run_needs_is_deployed(made: dict[str, Any]) -> None:
    assert made["services"].keys() == {"node", "coordinator"}


def test_every_node_is_confined_as_in_compose(made: dict[str, Any]) -> None:
    node = made["services"]["node"]
    same = ("init", "read_only", "cap_drop", "user", "stop_grace_period")
    assert {key: node[key] for key in same} == {key: NODE[key] for key in same}
    # Swarm ignores security_opt: the same by a command in the container.
    assert node["entrypoint"] == ["setpriv", "--no-new-privs", "python", "-m", "trainer.cluster"]
    assert node["deploy"]["resources"] == {"limits": {"cpus": "1.5", "memory": "1073741824", "pids": 512}}
    assert [(each["target"], each["tmpfs"]["size"] >> 20) for each in node["volumes"]] == [
        ("/dev/shm", 256),
        ("/tmp", 256),
        ("/run/shardyard", 512),
    ]
    assert not node.keys() & {*LEFT_OUT, *REPLACED} - {"healthcheck", "volumes"}


def test_nodes_have_addresses_of_their_own_and_are_not_replaced(made: dict[str, Any]) -> None:
    deploy = made["services"]["node"]["deploy"]
    assert (deploy["replicas"], deploy["endpoint_mode"]) == (3, "dnsrr")
    assert deploy["restart_policy"] == {"condition": "none"}
    assert made["networks"]["run"] == {
        "driver": "overlay",
        "internal": True,
        "attachable": False,
        "labels": {"shardyard.orchestrator": "1234 86400"},
    }


def test_the_coordinator_runs_where_the_results_are(made: dict[str, Any]) -> None:
    coordinator = made["services"]["coordinator"]
    assert coordinator["deploy"]["placement"] == {"constraints": ["node.id==m1"]}
    assert [each["source"] for each in coordinator["volumes"]] == ["/home/me/results/run"]
    assert coordinator["environment"]["SHARDYARD_SCALE"] == "3"
    assert coordinator["configs"][0]["uid"] == "1000"  # the owner of the results
    assert "cpus" not in coordinator["deploy"]["resources"]["limits"]


def test_files_are_distributed_as_configs(made: dict[str, Any]) -> None:
    files = {name: each["file"] for name, each in made["configs"].items()}
    assert files == {"spec": PLACED.spec, "code-0": PLACED.code["a/net.py"]}
    assert [each["target"] for each in made["services"]["node"]["configs"]] == ["/code/a/net.py"]


def test_everything_has_the_label_of_its_orchestrator(made: dict[str, Any]) -> None:
    labels = [each["deploy"]["labels"] for each in made["services"].values()]
    labels += [each["labels"] for kind in ("networks", "configs") for each in made[kind].values()]
    assert all(each == {"shardyard.orchestrator": "1234 86400"} for each in labels)


def test_data_is_mounted_only_for_a_dataset_with_files() -> None:
    node = make(CONFIG, replace(PLACED, data=True))["services"]["node"]
    (data,) = [each for each in node["volumes"] if each["target"] == "/data"]
    assert data == {"type": "bind", "source": "/home/me/data", "target": "/data", "read_only": True}


def test_placement_follows_the_sweep_file() -> None:
    options = SwarmOptions(nodes_per_machine=1, constraints=["node.labels.rack==3"])
    services = make(CONFIG, replace(PLACED, options=options))["services"]
    assert services["node"]["deploy"]["placement"] == {
        "constraints": ["node.labels.rack==3"],
        "max_replicas_per_node": 1,
    }
    assert services["coordinator"]["deploy"]["placement"] == {"constraints": ["node.id==m1"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"devices": ["/dev/kfd"]}, "devices"),
        ({"security_opt": ["seccomp=unconfined"]}, "seccomp"),
        ({"restart": "always"}, "restart: always"),
        ({"tmpfs": ["/tmp:mode=700,size=1m"]}, "mode=700"),
        ({"tmpfs": ["/tmp:noexec"]}, "noexec"),
        ({"volumes": [{"type": "bind", "source": "/x", "target": "/x"}]}, "/x"),
    ],
)
def test_what_a_stack_cannot_express_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(StackError, match=named):
        make(config(**change), PLACED)


def test_every_key_of_the_compose_files_is_in_a_table() -> None:
    """`docker stack deploy` ignores some keys without a word, so a new one must be decided on."""
    read_by_compose = {"extends", "build", "profiles", "attach"}
    files = [COMPOSE / f"{name}.yml" for name in ("common", "ddp", "mpi", "rpc", "single")]
    services: dict[str, dict[str, Any]] = {}
    for path in files:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            if name not in NOT_DEPLOYED:
                services[f"{path.name}: {name}"] = service
    assert services
    for name, service in services.items():
        assert service.keys() - read_by_compose <= {*KEPT, *LEFT_OUT, *REPLACED}, name
    assert not {*KEPT} & {*LEFT_OUT, *REPLACED}


def test_a_stack_file_is_yaml_without_variables() -> None:
    text = to_text(make(config(environment={"A": "costs $5"}), PLACED))
    assert "costs $$5" in text
    assert json.loads(text) == yaml.safe_load(text)


def test_the_image_is_the_same_on_every_machine(made: dict[str, Any]) -> None:
    assert {each["image"] for each in made["services"].values()} == {"sha256:12"}
