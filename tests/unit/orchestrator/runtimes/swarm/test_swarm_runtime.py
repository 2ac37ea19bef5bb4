"""Mistakes in runtime swarm: confinement that a stack loses, input that it must refuse, what is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.runtimes.swarm import services
from orchestrator.runtimes.swarm.options import SwarmOptions
from orchestrator.runtimes.swarm.stack import (
    KEPT,
    LEFT_OUT,
    NOT_DEPLOYED,
    REPLACED,
    Placed,
    StackError,
    stack,
)
from tests.unit.orchestrator.runtimes.docker.test_compose_files import EVERY

CONFINED = {"init": True, "read_only": True, "cap_drop": ["ALL"], "user": "10001:10001"}
LIMITS = {"mem_limit": "1073741824", "pids_limit": 512, "shm_size": "268435456", "restart": "no"}
PRIVILEGES = {"security_opt": ["no-new-privileges:true"], "tmpfs": ["/tmp:mode=1777,size=256m"]}
VOLUMES = [{"source": "/data", "target": "/data"}, {"source": "/x", "target": "/checkpoints"}]
NODE: dict[str, Any] = {**CONFINED, **LIMITS, **PRIVILEGES, "environment": {}, "volumes": VOLUMES}
OWNER, CODE = "1234 86400", {"a/net.py": "/r/code/a/net.py"}
PLACED = Placed(
    "sha256:12", ["python"], "m1", 3, 1.5, OWNER, "/r/spec.json", (1000, 1001), CODE, True, SwarmOptions()
)


def made(**changes: Any) -> dict[str, Any]:
    return stack({"services": {"node": {**NODE, **changes}, "coordinator": NODE, "data": {}}}, PLACED)


def test_a_stack_is_confined_and_labelled() -> None:
    """Swarm ignores security_opt; a command in the container does the same."""
    found, label = made(), {"shardyard.orchestrator": OWNER}
    node, coordinator = found["services"]["node"], found["services"]["coordinator"]
    assert node.items() >= CONFINED.items()
    assert node["entrypoint"] == ["setpriv", "--no-new-privs", "python"]
    assert node["deploy"]["resources"] == {"limits": {"cpus": "1.5", "memory": "1073741824", "pids": 512}}
    assert node["deploy"]["restart_policy"] == {"condition": "none"}
    mounts = {mount["target"]: mount.get("read_only", mount.get("tmpfs")) for mount in node["volumes"]}
    assert mounts == {"/dev/shm": {"size": 2**28}, "/tmp": {"size": 2**28}, "/data": True}
    assert coordinator["deploy"]["placement"] == {"constraints": ["node.id==m1"]}
    network, configs = found["networks"]["run"], found["configs"].values()
    assert network == {"driver": "overlay", "internal": True, "attachable": False, "labels": label}
    assert [each["labels"] for each in (*configs, node["deploy"], coordinator["deploy"])] == [label] * 4


def test_what_a_stack_cannot_express_is_refused() -> None:
    """`docker stack deploy` ignores some keys without a word, so a new one must be decided on."""
    changes: dict[str, dict[str, Any]] = {
        "service node: a stack has no devices": {"devices": ["/dev/kfd"]},
        "seccomp=unconfined": {"security_opt": ["seccomp=unconfined"]},
        "restart: always": {"restart": "always"},
        "mode=700": {"tmpfs": ["/tmp:mode=700,size=1m"]},
        "volumes: /x": {"volumes": [{"source": "/x", "target": "/x"}]},
    }
    for named, change in changes.items():
        with pytest.raises(StackError, match=named):
            made(**change)
    for topology, name, service in EVERY:
        unknown = service.keys() - {*KEPT, *LEFT_OUT, *REPLACED, "build", "attach"}
        assert name in NOT_DEPLOYED or not unknown, (topology, name)


def test_a_constraint_is_one_of_swarm() -> None:
    with pytest.raises(ValidationError, match="constraints"):
        SwarmOptions(constraints=["node.hostname==one --privileged"])


def test_an_interrupt_while_deploying_leaves_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(services, "remove_stack", lambda engine, name: removed.append(name))
    monkeypatch.setattr(services, "_deploy", interrupted)
    engine: Any = SimpleNamespace()
    with pytest.raises(KeyboardInterrupt):
        services.Stack(engine, "run-1", "ddp", [], "the file")
    assert removed == ["run-1", "run-1"]
