"""What the tests of trainer.cluster share: members and rosters, made without a container."""

from __future__ import annotations

from typing import Any

from trainer.cluster.rank_assignment import Agent, RankAssignment, assign_ranks

# The smallest run of each topology; `nodes` is found out.
FIELDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "dataset": "digits"},
    "mpi": {"strategy": "all_reduce", "transport": "mpi"},
    "rpc": {"strategy": "rpc_split"},
    "single": {"strategy": "hogwild"},
}
OTHER = {"mpi": "launcher", "rpc": "master"}


def nodes(*ordinals: int) -> list[Agent]:
    """Nodes that compose gave these numbers; node-7 has address 10.0.0.7."""
    return [
        Agent("node", number, f"10.0.0.{number}", hello={"host_key": f"key-{number}"})
        for number in ordinals
    ]


def other(role: str) -> Agent:
    """The launcher or the master, at 10.0.0.100."""
    return Agent(role, 1, "10.0.0.100", hello={"key": "key-of-launcher"} if role == "launcher" else {})


def present(topology: str, *ordinals: int) -> list[Agent]:
    """All members of a topology, the one that is no node last."""
    return [*nodes(*ordinals), *([other(OTHER[topology])] if topology in OTHER else [])]


def called(topology: str, *ordinals: int, **fields: Any) -> RankAssignment:
    """The roster of these nodes, and of who else belongs to the topology."""
    return assign_ranks(topology, {**FIELDS[topology], **fields}, present(topology, *ordinals))


def seat(assignment: RankAssignment, name: str) -> int:
    """Where in the roster a member is, by its name."""
    return [member.name for member in assignment.members].index(name)
