"""The machines of a swarm, and whether this engine can run stacks on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.runtimes.docker.engine import Engine

HOST = "shardyard.host"  # an engine's label: the machine of several engines that run on one


@dataclass(frozen=True)
class Machine:
    """A machine of the swarm.

    Attributes:
        identifier: its ID in Swarm.
        name: its host name.
        host: the same for all engines that run on one computer.
        cores: the cores of the computer.
        state: the state as Swarm names it: ready, down, unknown or disconnected.
        usable: whether Swarm places tasks on it.
        attributes: its attributes, by the names that constraints use.
    """

    identifier: str
    name: str
    host: str
    cores: float
    state: str
    usable: bool
    attributes: Mapping[str, str]

    def satisfies(self, constraints: Sequence[str]) -> bool:
        """Whether Swarm may place tasks with these constraints on it. An absent label is empty."""
        for constraint in constraints:
            name, operator, value = re.split(r" ?(==|!=) ?", constraint)
            equal = self.attributes.get(name, "").casefold() == value.casefold()  # as Swarm compares
            if equal is not (operator == "=="):
                return False
        return True


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
    """The machines of the engine's swarm, by name."""
    return sorted(map(_machine, engine.client.api.nodes()), key=lambda each: each.name)


def _machine(node: dict[str, Any]) -> Machine:
    description, spec = node.get("Description", {}), node["Spec"]
    name = description.get("Hostname", node["ID"])  # a machine that has not joined yet has none
    own, of_engine = spec.get("Labels") or {}, description.get("Engine", {}).get("Labels") or {}
    cores = description.get("Resources", {}).get("NanoCPUs", 0) / 1e9
    return Machine(
        identifier=node["ID"],
        name=name,
        host=of_engine.get(HOST, name),
        cores=cores,
        state=node["Status"]["State"],
        usable=node["Status"]["State"] == "ready" and spec["Availability"] == "active" and cores > 0,
        attributes={
            "node.id": node["ID"],
            "node.hostname": name,
            "node.role": spec["Role"],
            **{f"node.labels.{key}": value for key, value in own.items()},
            **{f"engine.labels.{key}": value for key, value in of_engine.items()},
        },
    )


def total_cores(found: Sequence[Machine]) -> float:
    """Cores of these machines; engines on one computer share its cores."""
    return sum({each.host: each.cores for each in found}.values())
