"""The roll: which member gets which ranks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.spec.run_spec import RunSpec

# Beside the nodes, a topology may have one more member.
ROLES: Mapping[str, tuple[str, ...]] = {
    "ddp": ("node",),
    "mpi": ("node", "launcher"),
    "rpc": ("node", "master"),
    "single": ("node",),
}


class AssignmentError(Exception):
    """The members do not make up the run; the message is for the user."""


@dataclass(frozen=True)
class Agent:
    """One container.

    ordinal: the number that compose gave it, from 1, where a service that was scaled down and up may
    have gaps. ranks: of the processes that run in it. hello: what it said about itself.
    """

    role: str
    ordinal: int
    address: str
    ranks: tuple[int, ...] = ()
    hello: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As compose shows it: node-3, launcher."""
        return f"node-{self.ordinal}" if self.role == "node" else self.role


@dataclass(frozen=True)
class RankAssignment:
    """What every member is told: the run, all members, and which of them it is."""

    spec: RunSpec
    members: tuple[Agent, ...]
    you: int = 0

    @property
    def me(self) -> Agent:
        return self.members[self.you]

    def holder(self, rank: int) -> Agent:
        """The member in which `rank` runs."""
        for member in self.members:
            if rank in member.ranks:
                return member
        raise ValueError(f"no member has rank {rank!r}")

    def as_message(self, you: int) -> dict[str, Any]:
        members = [asdict(member) for member in self.members]
        return {"spec": self.spec.model_dump(mode="json"), "members": members, "you": you}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RankAssignment:
        members = tuple(Agent(**{**each, "ranks": tuple(each["ranks"])}) for each in message["members"])
        return cls(RunSpec.model_validate(message["spec"]), members, message["you"])


def read_spec(path: Path) -> dict[str, Any]:
    """The fields of the run in a JSON file. Raises RollError."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AssignmentError(f"the run's spec cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise AssignmentError(f"the run's spec is {fields!r:.80}, not a mapping of fields to values")
    return fields


def assign_ranks(
    topology: str,
    fields: Mapping[str, Any],
    present: Sequence[Agent],
    limits: Mapping[str, float] | None = None,
) -> RankAssignment:
    """The roster of the members that are there.

    fields: of the RunSpec; `nodes` may be missing, then it is the number of nodes that are there (in
    topology rpc with the master, which is rank 0). In topology single the first node runs all ranks,
    and the others only say how many there are. limits: what each container was started with, where the
    fields need not say it. Raises RollError.
    """
    nodes = sorted((each for each in present if each.role == "node"), key=lambda each: each.ordinal)
    other = [each for each in present if each.role != "node"]
    count = len(nodes) + (topology == "rpc")
    spec = _spec({"nodes": count, **_limited(topology, fields, limits or {}, count)})
    if limits and spec.bottleneck_cpus is not None:
        raise AssignmentError(
            f"bottleneck_cpus {spec.bottleneck_cpus:g} cannot be had from a bare `up`, which gives all "
            "nodes the same quota: python -m orchestrator sweep holds one of them back"
        )
    if spec.topology != topology:
        raise AssignmentError(
            f"a run over {spec.transport} has topology {spec.topology}: "
            f"use compose/{spec.topology}.yml, not compose/{topology}.yml"
        )
    if topology == "single":
        ranks = [tuple(range(spec.world_size))] + [()] * (count - 1)
    else:
        if spec.nodes != count:
            scale = spec.nodes - (topology == "rpc")
            raise AssignmentError(f"the run has {spec.nodes} nodes, {count} came: use --scale node={scale}")
        each = spec.processes_per_node
        first = 1 if topology == "rpc" else 0
        ranks = [tuple(range(first + i * each, first + (i + 1) * each)) for i in range(len(nodes))]
    numbered = [replace(node, ranks=held) for node, held in zip(nodes, ranks, strict=True)]
    masters = [replace(each, ranks=(0,)) if each.role == "master" else each for each in other]
    return RankAssignment(spec, (*masters, *numbered))


def _limited(
    topology: str, fields: Mapping[str, Any], limits: Mapping[str, float], nodes: int
) -> dict[str, Any]:
    """The fields with the limits that the containers really have; a field that differs is an error."""
    for name, value in limits.items():
        if fields.get(name, value) != value:
            raise AssignmentError(
                f"the run's spec wants {name} {fields[name]}, and the containers were started with "
                f"{value:g}: set SHARDYARD_{name.upper()}={fields[name]}"
            )
    # In topology single all nodes share the one container that trains, and its quota.
    shared = {"cpus": limits["cpus"] / nodes} if topology == "single" and "cpus" in limits else {}
    return {**limits, **fields, **shared}


def _spec(fields: Mapping[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        lines = []
        for each in error.errors():
            place = ".".join(str(part) for part in each["loc"])
            lines.append(f"{place}: {each['msg']}, not {each['input']!r:.80}" if place else each["msg"])
        raise AssignmentError("the run's spec is not valid: " + "; ".join(lines)) from None
