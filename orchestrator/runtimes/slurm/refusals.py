"""Why Slurm refuses a job, in terms of the keys that users set. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.script import time_limit
from orchestrator.runtimes.slurm.times import seconds_of
from trainer.spec.run_spec import RunSpec

# What Slurm's versions say about a part of a request. A cluster with EnforcePartLimits says more.
ABOUT = {
    "partition": re.compile(r"invalid partition|Required partition not available", re.IGNORECASE),
    "account": re.compile(r"Invalid account|account not permitted", re.IGNORECASE),
    "gres": re.compile(r"generic resource|\bgres\b", re.IGNORECASE),
    "constraint": re.compile(r"Invalid feature", re.IGNORECASE),
    "time": re.compile(r"time limit is invalid|Requested time limit", re.IGNORECASE),
    "size": re.compile(r"node configuration is not available|Node count specification", re.IGNORECASE),
}
FORMAT = "%P|%D|%l|%c|%m|%f|%G|%a"  # of sinfo, as `parse_partitions` reads it


@dataclass(frozen=True)
class Partition:
    """A partition that this user can see.

    limit: the time limit of jobs, as Slurm prints it. cpus: the CPUs of a node. features, gres: those of
    some of its nodes.
    """

    name: str
    nodes: int
    limit: str
    cpus: int
    default: bool = False
    up: bool = True
    features: frozenset[str] = frozenset()
    gres: frozenset[str] = frozenset()

    def __str__(self) -> str:
        notes = [note for note, holds in (("default", self.default), ("not up", not self.up)) if holds]
        return f"{self.name} ({', '.join(notes)})" if notes else self.name


@dataclass(frozen=True)
class JobRequest:
    """The job of a run. place: how a message names where an option of `slurm` is set."""

    spec: RunSpec
    options: SlurmOptions
    place: Callable[[str], str]

    def partitions(self, all_of_them: Sequence[Partition]) -> list[Partition]:
        """The partitions in which the job can run."""
        if names := self.options.partition:
            return [each for each in all_of_them if each.name in names.split(",")]
        return [each for each in all_of_them if each.default]


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in the output of sinfo. It has a line for each kind of node of a partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != FORMAT.count("|") + 1:
            continue
        name, nodes, limit, cpus, _, features, gres, state = fields
        before = found.get(name.rstrip("*"), Partition(name.rstrip("*"), 0, limit, 0))
        found[before.name] = Partition(
            before.name,
            before.nodes + int(nodes),
            limit,
            max(before.cpus, int(cpus.rstrip("+"))),
            default=name.endswith("*"),
            up=state == "up",
            features=before.features | _words(features),
            gres=before.gres | _words(gres),
        )
    return list(found.values())


def _words(text: str) -> frozenset[str]:
    return frozenset() if text == "(null)" else frozenset(text.split(","))


def too_long(request: JobRequest, partitions: Sequence[Partition]) -> str | None:
    """Why no partition of a request permits its time limit; None if one does.

    Most clusters accept such a job, and never start it. A QOS can permit more than its partition.
    """
    chosen = request.partitions(partitions)
    if not chosen or any(each.startswith("--qos=") for each in request.options.arguments or ()):
        return None
    longest = max(chosen, key=lambda each: seconds_of(each.limit))
    asked = time_limit(request.spec, request.options)
    if seconds_of(asked) <= seconds_of(longest.limit):
        return None
    allowed = f"partition {longest.name} permits {longest.limit}"
    others = [str(each) for each in partitions if seconds_of(asked) <= seconds_of(each.limit)]
    hint = f"; partitions that permit it: {', '.join(others)}" if others else ""
    hint += "; if a QOS permits it, name that: arguments: [--qos=NAME]"
    if request.options.time:
        return f"{request.place('time')}: {asked!r} is not allowed: {allowed}{hint}"
    return (
        f"timeout_s: {request.spec.timeout_s:g} needs a time limit of {asked} minutes, but {allowed}; "
        f"lower it, or set slurm.time{hint}"
    )


def explain(
    error: str, request: JobRequest, partitions: Sequence[Partition], accounts: Sequence[str]
) -> str:
    """A message for Slurm's error that names the key, its value and what is allowed.

    Args:
        partitions: those of the cluster. accounts: those of this user; empty without accounting.
    """
    error = error.removeprefix("allocation failure: ")
    about = next((key for key, pattern in ABOUT.items() if pattern.search(error)), None)
    said = f"Slurm says {error!r}"
    if about == "time":
        return too_long(request, partitions) or f"{request.place('time')}: {said}"
    if about == "size":
        return f"{_size(request, partitions)}; {said}"
    if about is None:
        return f"{_options(request)}: {said}"
    chosen = request.partitions(partitions) or partitions
    allowed = {
        "partition": list(map(str, partitions)),
        "account": sorted(set(accounts)),
        "gres": sorted({word for each in chosen for word in each.gres}),
        "constraint": sorted({word for each in chosen for word in each.features}),
    }[about]
    value = getattr(request.options, about)
    start = f"{request.place(about)}: {value!r} is not allowed" if value else f"slurm.{about} is not set"
    end = {
        "partition": f"partitions: {', '.join(allowed)}",
        "account": f"your accounts: {', '.join(allowed) or 'unknown'}; a partition can admit only some",
        "gres": f"nodes have: {', '.join(allowed) or 'none'}",
        "constraint": f"features of nodes: {', '.join(allowed) or 'none'}",
    }[about]
    return f"{start}; {end}; {said}"


def _size(request: JobRequest, partitions: Sequence[Partition]) -> str:
    """What a run asks for, and what its partitions have."""
    spec = request.spec
    chosen = request.partitions(partitions)
    single = spec.topology == "single"
    nodes = 1 if single else spec.nodes
    cpus = spec.threads * (spec.world_size if single else spec.processes_per_node)
    have = "; ".join(f"partition {each.name} has {each.nodes} nodes of {each.cpus} CPUs" for each in chosen)
    if chosen and all(nodes > each.nodes for each in chosen):
        return f"nodes: {nodes} is not allowed: {have}"
    asked = f"the run asks for {nodes} node(s) of {cpus} CPU(s) (processes_per_node × threads)"
    more = f", with {_options(request)}" if request.options.arguments or request.options.constraint else ""
    return f"{asked}{more}; {have or 'no such partition'}"


def _options(request: JobRequest) -> str:
    """The options of a request that are set, with the place of each."""
    chosen = request.options.model_dump(exclude_none=True)
    return ", ".join(f"{request.place(name)}: {value!r}" for name, value in chosen.items()) or "slurm"
