"""Where Ray places the nodes of a cluster, and what is missing while it cannot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.core.record import Record
from trainer.spec.run_spec import RunSpec

MIB = 2**20
SPREAD, STRICT_SPREAD = "SPREAD", "STRICT_SPREAD"


class GroupRequest(Record):
    """What Ray's driver is started with.

    Attributes:
        address: that of the cluster; None: the driver starts one, of so many `raylets`.
        session: the directory of what is started for this driver.
        code: directories of the packages that nodes import.
        size: the number of nodes. cpus, memory_mb, gpus: what each of them needs.
    """

    address: str | None
    raylets: int
    session: str
    code: list[str]
    size: int
    cpus: float
    memory_mb: int
    gpus: int


@dataclass(frozen=True)
class NodeResources:
    """What Ray reserves for a node: CPUs, MiB of memory, GPUs. Ray does not enforce the first two."""

    cpus: float
    memory_mb: int
    gpus: int = 0

    @classmethod
    def of(cls, runs: Sequence[RunSpec]) -> NodeResources:
        """Enough for a node of each of these runs."""
        return cls(
            cpus=max(run.cpus for run in runs),
            memory_mb=max(run.memory_mb for run in runs),
            gpus=max(run.processes_per_node if run.on_gpu else 0 for run in runs),
        )

    def bundle(self) -> dict[str, float]:
        """The same, as a bundle of a placement group."""
        found = {"CPU": self.cpus, "memory": float(self.memory_mb * MIB), "GPU": float(self.gpus)}
        return {name: amount for name, amount in found.items() if amount}

    def fits(self, machine: Mapping[str, Any]) -> bool:
        """Whether a machine with these resources can have such a node."""
        return all(machine.get(name, 0) >= amount for name, amount in self.bundle().items())

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPU{'s' * (self.gpus != 1)}" if self.gpus else ""
        return f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}, {self.memory_mb} MiB{gpus}"


def strategy(size: int, node: NodeResources, machines: Sequence[Mapping[str, Any]]) -> str:
    """STRICT_SPREAD, one node on each machine, if enough of them can have one; else SPREAD."""
    return STRICT_SPREAD if sum(map(node.fits, machines)) >= size else SPREAD


def missing(
    size: int, node: NodeResources, machines: Sequence[Mapping[str, Any]], free: Mapping[str, float]
) -> str:
    """Why a group is pending: what it asks for, what the machines have, and what of it is free.

    Args:
        machines: the resources of each machine. free: those of the cluster that are free.
    """
    fitting = sum(map(node.fits, machines))
    asked = f"{size} node{'s' * (size != 1)} of {node}"
    have = f"{fitting} of {len(machines)} machine{'s' * (len(machines) != 1)} can have one"
    amounts = [f"{free.get('CPU', 0):g} CPUs", f"{free.get('memory', 0) / MIB:.0f} MiB"]
    if node.gpus:
        amounts.append(f"{free.get('GPU', 0):g} GPUs")
    return f"Ray has no room for {asked}: {have}, and {', '.join(amounts)} are free"
