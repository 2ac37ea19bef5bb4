"""Rank assignment: which agent gets which ranks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.core.regular_files import read_regular
from trainer.node.site import CONTAINERS, Site
from trainer.spec.run_spec import RunSpec

# Services with an agent. Besides the nodes, a topology may have one more.
ROLES: Mapping[str, tuple[str, ...]] = {
    "ddp": ("node",),
    "mpi": ("node", "launcher"),
    "rpc": ("node", "master"),
    "single": ("node",),
}


RENDEZVOUS_PORT = 29500  # of a container


class AssignmentError(Exception):
    """The nodes cannot run the spec; the message is for the user."""


def container_name(role: str, ordinal: int) -> str:
    """The name of a container in compose: node-3, launcher. Other services have one container."""
    return f"node-{ordinal}" if role == "node" else role


@dataclass(frozen=True)
class AgentInfo:
    """One container with an agent.

    Attributes:
        role: its compose service.
        ordinal: its compose container number, from 1. A service that was scaled down and up may have gaps.
        address, port: its address on the run's network, and the port where rank 0 listens if it has it.
        ranks: the ranks of the processes that run in it.
        public_keys: the public ssh keys, by purpose; for Open MPI only.
        replaced: why its warm parent was replaced before the run; None if it was not.
    """

    role: str
    ordinal: int
    address: str
    ranks: tuple[int, ...] = ()
    public_keys: dict[str, str] = field(default_factory=dict)
    replaced: str | None = None
    port: int = RENDEZVOUS_PORT

    @property
    def name(self) -> str:
        """The name of the container."""
        return container_name(self.role, self.ordinal)


def node_name(role: str, number: int, agents: Iterable[AgentInfo], topology: str) -> str:
    """The name by rank of a container, in rows: like compose's numbers, but from 0 and without gaps.

    Args:
        role: its compose service.
        number: its compose container number.
        agents: those of the run's rank assignment; empty before ranks are assigned.
        topology: the topology of the containers.
    """
    if role == "master":
        return "node 0"
    if role != "node":
        return role
    for agent in agents:
        if (agent.role, agent.ordinal) == (role, number) and agent.ranks:
            return f"node {agent.ranks[0] // len(agent.ranks)}"
    first = 0 if topology == "rpc" else 1  # in rpc the master is node 0
    return f"node {number - first}"


@dataclass(frozen=True)
class RankAssignment:
    """The run, all its agents, and their machines. index: the position of the agent that received it."""

    spec: RunSpec
    agents: tuple[AgentInfo, ...]
    index: int = 0
    site: Site = CONTAINERS

    @property
    def agent(self) -> AgentInfo:
        """The agent that received this assignment."""
        return self.agents[self.index]

    @property
    def node(self) -> int:
        """The number of the receiver's node. Raises IndexError for a launcher."""
        return self.agent.ranks[0] // self.spec.processes_per_node

    def agent_of(self, rank: int) -> AgentInfo:
        """The agent whose container runs `rank`."""
        for agent in self.agents:
            if rank in agent.ranks:
                return agent
        raise ValueError(f"no agent has rank {rank!r}")

    def to_message(self, index: int) -> dict[str, Any]:
        """The fields of the protocol's `assignment` message for one agent."""
        agents = [asdict(agent) for agent in self.agents]
        return {
            "spec": self.spec.model_dump(mode="json"),
            "agents": agents,
            "index": index,
            "site": self.site.model_dump(exclude_defaults=True),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RankAssignment:
        """The inverse of `to_message`."""
        agents = tuple(AgentInfo(**{**each, "ranks": tuple(each["ranks"])}) for each in message["agents"])
        site = Site.model_validate(message["site"])
        return cls(RunSpec.model_validate(message["spec"]), agents, message["index"], site)


def read_spec(path: Path) -> dict[str, Any]:
    """The fields of the run in a JSON file. Raises AssignmentError."""
    try:
        fields = json.loads(read_regular(path))
    except (OSError, ValueError) as error:
        raise AssignmentError(f"the run's spec cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise AssignmentError(f"the run's spec is {fields!r:.80}, not a mapping of fields to values")
    return fields


def assign_ranks(
    topology: str,
    fields: Mapping[str, Any],
    registered: Sequence[AgentInfo],
    limits: Mapping[str, float] | None = None,
) -> RankAssignment:
    """Assign ranks to the registered agents, in the order of their container numbers.

    In topology `single` the first node runs all ranks, and the others only say how many there are. In
    topology `rpc` the master has rank 0, if there is one.

    Args:
        topology: the topology of the containers.
        fields: the fields of the RunSpec. Without `nodes`, it is the number of registered nodes (and the
            master).
        registered: the registered agents, in any order.
        limits: the limits of each container, for fields that the spec leaves out.

    Raises:
        AssignmentError: the spec is invalid, or does not fit the topology, the nodes or the limits.
    """
    nodes = sorted((each for each in registered if each.role == "node"), key=lambda each: each.ordinal)
    other = [each for each in registered if each.role != "node"]
    masters = sum(each.role == "master" for each in other)
    count = len(nodes) + masters
    spec = _validated({"nodes": count, **_with_limits(topology, fields, limits or {}, count)})
    if limits and spec.node_speed is not None:
        raise AssignmentError(
            f"node_speed: {spec.node_speed} needs nodes with quotas of their own, and "
            "`docker compose up` gives all nodes the same; use shardyard sweep"
        )
    if limits and spec.has_links:
        raise AssignmentError("link: only the orchestrator connects nodes to a switch; use shardyard sweep")
    if spec.topology != topology:
        raise AssignmentError(
            f"a run over {spec.transport} has topology {spec.topology}: "
            f"use compose/{spec.topology}.yml, not compose/{topology}.yml"
        )
    if topology == "single":
        ranks = [tuple(range(spec.world_size))] + [()] * (count - 1)
    else:
        if spec.nodes != count:
            scale = spec.nodes - masters
            raise AssignmentError(
                f"the run has {spec.nodes} nodes, {count} registered: use --scale node={scale}"
            )
        each = spec.processes_per_node
        ranks = [tuple(range(masters + i * each, masters + (i + 1) * each)) for i in range(len(nodes))]
    numbered = [replace(node, ranks=own) for node, own in zip(nodes, ranks, strict=True)]
    others = [replace(each, ranks=(0,)) if each.role == "master" else each for each in other]
    return RankAssignment(spec, (*others, *numbered))


def needed_agents(
    topology: str, fields: Mapping[str, Any], registered: Sequence[AgentInfo]
) -> list[AgentInfo]:
    """The agents that a run needs of warm containers, which are as many as the largest run needs.

    These are the first nodes by container number, and all others.
    """
    nodes = sorted((each for each in registered if each.role == "node"), key=lambda each: each.ordinal)
    other = [each for each in registered if each.role != "node"]
    masters = sum(each.role == "master" for each in other)
    count = int(fields["nodes"]) - masters if topology != "single" else 1
    return [*nodes[:count], *other]


def _with_limits(
    topology: str, fields: Mapping[str, Any], limits: Mapping[str, float], nodes: int
) -> dict[str, Any]:
    """The fields with the limits of the containers; a field that differs from its limit is an error."""
    for name, value in limits.items():
        if fields.get(name, value) != value:
            raise AssignmentError(
                f"the run's spec has {name} {fields[name]}, but the containers were started with "
                f"{value:g}: set SHARDYARD_{name.upper()}={fields[name]}"
            )
    # In topology single all nodes share the quota of the one container that trains.
    shared = {"cpus": limits["cpus"] / nodes} if topology == "single" and "cpus" in limits else {}
    return {**limits, **fields, **shared}


def _validated(fields: Mapping[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        lines = []
        for each in error.errors():
            location = ".".join(str(part) for part in each["loc"])
            lines.append(
                f"{location}: {each['msg']}, not {each['input']!r:.80}" if location else each["msg"]
            )
        raise AssignmentError("the run's spec is not valid: " + "; ".join(lines)) from None
