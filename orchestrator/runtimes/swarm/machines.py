"""The machines of a swarm, and whether this engine can run stacks on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.runtimes.docker.engine import Engine

HOST = "shardyard.host"  # an engine's label: the machine of several engines that run on one


@dataclass(frozen=True)
class Machine:
    """A machine of the swarm.

    Attributes:
        identifier: of Swarm.
        name: its host name.
        host: the same for all engines that run on one computer.
        cores: of the computer.
        state: as Swarm names it: ready, down, unknown or disconnected.
        usable: whether Swarm places tasks on it.
    """

    identifier: str
    name: str
    host: str
    cores: float
    state: str
    usable: bool


def manager_trouble(engine: Engine) -> str | None:
    """Why the engine cannot run stacks; None if it is a manager of a swarm."""
    swarm = engine.client.info()["Swarm"]
    if swarm["LocalNodeState"] != "active":
        return (
            f"the Docker engine at {engine.host} is in no swarm: docker swarm init; "
            "to try it on one machine: make swarm-cluster"
        )
    if not swarm["ControlAvailable"]:
        managers = ", ".join(each["Addr"] for each in swarm.get("RemoteManagers") or [])
        return f"the Docker engine at {engine.host} is no manager of its swarm; a manager is at {managers}"
    return None


def own_machine(engine: Engine) -> str:
    """ID of the machine of this engine."""
    return str(engine.client.info()["Swarm"]["NodeID"])


def machines(engine: Engine) -> list[Machine]:
    """The machines of the engine's swarm."""
    return [_machine(node) for node in engine.client.api.nodes()]


def _machine(node: dict[str, Any]) -> Machine:
    description = node["Description"]
    name = description["Hostname"]
    return Machine(
        identifier=node["ID"],
        name=name,
        host=(description["Engine"].get("Labels") or {}).get(HOST, name),
        cores=description["Resources"]["NanoCPUs"] / 1e9,
        state=node["Status"]["State"],
        usable=node["Status"]["State"] == "ready" and node["Spec"]["Availability"] == "active",
    )


def total_cores(found: list[Machine]) -> float:
    """Cores of all usable machines; engines on one computer share its cores."""
    return sum({each.host: each.cores for each in found if each.usable}.values())
