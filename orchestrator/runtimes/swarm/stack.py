"""The stack of a run, made from the compose files. Pure.

A stack file takes other keys than a compose file, and `docker stack deploy` ignores some without a word. So
every key of a service is in one of the tables below; any other key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.runtimes.swarm.options import SwarmOptions

Service = dict[str, Any]

# Only a bare `docker compose up` needs them: the orchestrator prepares the data, and sees exit codes.
NOT_DEPLOYED = ("data", "exit-code")

# What a stack takes as it is.
KEPT = (
    "cap_add",
    "cap_drop",
    "command",
    "environment",
    "image",
    "init",
    "labels",
    "logging",
    "networks",
    "read_only",
    "stop_grace_period",
    "user",
)

# What a stack has no use for, and why the run does not need it.
LEFT_OUT = {
    "depends_on": "the coordinator waits for all agents",
    "healthcheck": "Swarm replaces an unhealthy container; heartbeats to the coordinator find it here",
    "memswap_limit": "Swarm does not limit swap: a node on a machine with swap may use it",
    "pull_policy": "the image is given by its ID, or by its digest in a registry",
    "scale": "deploy.replicas",
}


class StackError(Exception):
    """The compose files have something that a stack cannot express."""


@dataclass(frozen=True)
class Placed:
    """What the stack of a run needs besides its compose files.

    Attributes:
        image: the image, by ID or digest.
        entrypoint: the entrypoint of the image.
        manager: ID of the machine that has the results, where the coordinator runs.
        replicas: the replicas of service `node`.
        cpus: quota of each node. It holds from the start.
        owner: value of the label `shardyard.orchestrator`.
        spec: path of the run's spec.
        user: UID and GID of its owner, who also owns the results.
        code: files of users' components, by their path below /code.
        data: whether the run reads files of the data directory.
        options: those of the sweep file.
    """

    image: str
    entrypoint: Sequence[str]
    manager: str
    replicas: int
    cpus: float
    owner: str
    spec: str
    user: tuple[int, int]
    code: Mapping[str, str]
    data: bool
    options: SwarmOptions


def stack(config: Mapping[str, Any], placed: Placed) -> dict[str, Any]:
    """The stack of a run.

    Args:
        config: what `docker compose config` prints for the run.
        placed: where it runs.

    Raises:
        StackError: names the key that a stack cannot express.
    """
    label = {"shardyard.orchestrator": placed.owner}
    services = {
        name: _service(name, service, placed)
        for name, service in config["services"].items()
        if name not in NOT_DEPLOYED
    }
    files = {"spec": placed.spec} | {
        _config(number): path for number, path in enumerate(placed.code.values())
    }
    return {
        "version": "3.9",
        "services": services,
        # Not attachable: no other container of the swarm can join the run's network.
        "networks": {
            "run": {"driver": "overlay", "internal": True, "attachable": False, "labels": label},
        },
        "configs": {name: {"file": path, "labels": label} for name, path in files.items()},
    }


def _config(number: int) -> str:
    return f"code-{number}"


def _service(name: str, service: Mapping[str, Any], placed: Placed) -> Service:
    service = {key: value for key, value in service.items() if value is not None}  # not set
    unknown = service.keys() - {*KEPT, *LEFT_OUT, *REPLACED}
    if unknown:
        raise StackError(f"service {name}: a stack has no {', '.join(sorted(unknown))}")
    trains = name != "coordinator"
    found: Service = {key: service[key] for key in KEPT if key in service}
    found |= {
        "image": placed.image,
        "healthcheck": {"disable": True},
        "volumes": [],
        "configs": [] if trains else [_mounted("spec", "/spec.json", placed)],
        "deploy": {
            "replicas": placed.replicas if name == "node" else 1,
            "endpoint_mode": "dnsrr",  # each task has its own address, and none is behind a virtual one
            "labels": {"shardyard.orchestrator": placed.owner},
            "placement": _placement(name, placed),
            "resources": {"limits": {}},
        },
    }
    for key, replace in REPLACED.items():
        if key in service:
            replace(found, service[key], placed)
    if trains:
        code = enumerate(placed.code)
        found["configs"] += [_mounted(_config(number), f"/code/{path}", placed) for number, path in code]
        found["deploy"]["resources"]["limits"]["cpus"] = f"{placed.cpus:g}"
    else:
        found["environment"] = {**found["environment"], "SHARDYARD_SCALE": str(placed.replicas)}
    return found


def _placement(name: str, placed: Placed) -> dict[str, Any]:
    if name == "coordinator":
        return {"constraints": [f"node.id=={placed.manager}"]}
    found: dict[str, Any] = {"constraints": list(placed.options.constraints)}
    if name == "node" and placed.options.nodes_per_machine:
        found["max_replicas_per_node"] = placed.options.nodes_per_machine
    return found


def _mounted(config: str, target: str, placed: Placed) -> dict[str, Any]:
    uid, gid = map(str, placed.user)
    return {"source": config, "target": target, "mode": 0o444, "uid": uid, "gid": gid}


def _restart(found: Service, value: str, placed: Placed) -> None:
    if value != "no":
        raise StackError(f"restart: {value}: a node that has ended stays ended")
    found["deploy"]["restart_policy"] = {"condition": "none"}


def _security(found: Service, value: Sequence[str], placed: Placed) -> None:
    """Swarm ignores security_opt; `setpriv` does the same within the container."""
    if list(value) != ["no-new-privileges:true"]:
        raise StackError(f"security_opt: {', '.join(value)}: allowed is no-new-privileges:true")
    found["entrypoint"] = ["setpriv", "--no-new-privs", *placed.entrypoint]


def _limit(name: str) -> Callable[[Service, Any, Placed], None]:
    def limit(found: Service, value: Any, placed: Placed) -> None:
        found["deploy"]["resources"]["limits"][name] = value

    return limit


def _memory(found: Service, value: Any, placed: Placed) -> None:
    found["deploy"]["resources"]["limits"]["memory"] = str(value)


def _shm(found: Service, value: Any, placed: Placed) -> None:
    found["volumes"].append({"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": int(value)}})


def _tmpfs(found: Service, value: Sequence[str], placed: Placed) -> None:
    for mount in value:
        match = re.fullmatch(r"(/[^:]+):mode=1777,size=(\d+)m", mount)  # 1777 is Swarm's own mode
        if not match:
            raise StackError(f"tmpfs: {mount}: allowed are mode=1777 and a size in m")
        size = int(match[2]) * 2**20
        found["volumes"].append({"type": "tmpfs", "target": match[1], "tmpfs": {"size": size}})


def _volumes(found: Service, value: Sequence[Mapping[str, Any]], placed: Placed) -> None:
    for mount in value:
        match mount["target"]:
            case "/results":
                found["volumes"].append(
                    {"type": "bind", "source": mount["source"], "target": "/results", "read_only": False}
                )
            case "/data" if placed.data:  # every machine must have it
                found["volumes"].append(
                    {"type": "bind", "source": mount["source"], "target": "/data", "read_only": True}
                )
            case "/data" | "/code" | "/checkpoints" | "/spec.json":
                pass  # /code and /spec.json are configs of the stack; the others are not used
            case target:
                raise StackError(f"volumes: {target}: there is no such directory on all machines")


REPLACED: Mapping[str, Callable[[Service, Any, Placed], None]] = {
    "cpus": lambda found, value, placed: None,  # see `_service`: the quota of the run
    "mem_limit": _memory,
    "pids_limit": _limit("pids"),
    "restart": _restart,
    "security_opt": _security,
    "shm_size": _shm,
    "tmpfs": _tmpfs,
    "volumes": _volumes,
}


def to_text(made: Mapping[str, Any]) -> str:
    """The stack as a file: JSON, which is YAML. `$` would begin a variable."""
    return json.dumps(made, indent=2).replace("$", "$$") + "\n"
