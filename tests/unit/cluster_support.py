"""Agents and rank assignments for the tests of trainer.node, without containers."""

from __future__ import annotations

from typing import Any

from trainer.node.rank_assignment import AgentInfo, RankAssignment, assign_ranks

# The smallest run of each topology, whose agents send no traces; `nodes` follows from the number of
# containers.
FIELDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "dataset": "digits", "trace": "none"},
    "mpi": {"strategy": "all_reduce", "transport": "mpi", "trace": "none"},
    "rpc": {"strategy": "rpc_split", "trace": "none"},
    "single": {"strategy": "hogwild"},
}
OTHER = {"mpi": "launcher", "rpc": "master"}


def nodes(*ordinals: int) -> list[AgentInfo]:
    """Nodes with these container numbers; node-7 has address 10.0.0.7."""
    return [
        AgentInfo("node", number, f"10.0.0.{number}", public_keys={"host_key": f"key-{number}"})
        for number in ordinals
    ]


def other(role: str) -> AgentInfo:
    """The launcher or the master, at 10.0.0.100."""
    keys = {"key": "key-of-launcher"} if role == "launcher" else {}
    return AgentInfo(role, 1, "10.0.0.100", public_keys=keys)


def registered(topology: str, *ordinals: int) -> list[AgentInfo]:
    """All agents of a topology, the launcher or master last."""
    return [*nodes(*ordinals), *([other(OTHER[topology])] if topology in OTHER else [])]


def assigned(topology: str, *ordinals: int, **fields: Any) -> RankAssignment:
    """The rank assignment of a topology with these nodes."""
    return assign_ranks(topology, {**FIELDS[topology], **fields}, registered(topology, *ordinals))


def index_of(assignment: RankAssignment, name: str) -> int:
    """The index of the named agent in the assignment."""
    return [agent.name for agent in assignment.agents].index(name)
