"""What the tests of trainer.cluster share: members and rosters, made without a container."""

from __future__ import annotations

from typing import Any

from trainer.cluster.roll import Member, Roster, call_roll

# The smallest run of each topology; `nodes` is found out.
FIELDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "dataset": "digits"},
    "mpi": {"strategy": "all_reduce", "transport": "mpi"},
    "rpc": {"strategy": "rpc_split"},
    "single": {"strategy": "hogwild"},
}
OTHER = {"mpi": "launcher", "rpc": "master"}


def nodes(*ordinals: int) -> list[Member]:
    """Nodes that compose gave these numbers; node-7 has address 10.0.0.7."""
    return [
        Member("node", number, f"10.0.0.{number}", hello={"host_key": f"key-{number}"})
        for number in ordinals
    ]


def other(role: str) -> Member:
    """The launcher or the master, at 10.0.0.100."""
    return Member(role, 1, "10.0.0.100", hello={"key": "key-of-launcher"} if role == "launcher" else {})


def present(topology: str, *ordinals: int) -> list[Member]:
    """All members of a topology, the one that is no node last."""
    return [*nodes(*ordinals), *([other(OTHER[topology])] if topology in OTHER else [])]


def called(topology: str, *ordinals: int, **fields: Any) -> Roster:
    """The roster of these nodes, and of who else belongs to the topology."""
    return call_roll(topology, {**FIELDS[topology], **fields}, present(topology, *ordinals))


def seat(roster: Roster, name: str) -> int:
    """Where in the roster a member is, by its name."""
    return [member.name for member in roster.members].index(name)
