"""From a run to its launch plan. Pure: it can be printed and tested without starting anything."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class LaunchPlan:
    """What a runtime has to start, whatever it starts it with."""

    spec: RunSpec

    @property
    def environment(self) -> dict[str, str]:
        """Of every rank's process."""
        return self.spec.thread_environment()

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def topology(self) -> str:
        return self.spec.topology

    @property
    def nodes(self) -> int:
        return self.spec.nodes

    @property
    def processes_per_node(self) -> int:
        return self.spec.processes_per_node

    @property
    def world_size(self) -> int:
        """Ranks in all: processes to start, unless the topology is `single`."""
        return self.spec.world_size


def plan(run: RunSpec) -> LaunchPlan:
    """How the nodes of `run` are wired and started."""
    return LaunchPlan(run)


def rank_name(rank: int, processes_per_node: int) -> str:
    """What a rank is called, as a process and in messages: `node 1`, or `rank 3 of node 1`."""
    if processes_per_node == 1:
        return f"node {rank}"
    return f"rank {rank} of node {rank // processes_per_node}"


def rank_noun(processes_per_node: int) -> str:
    """What ranks are counted as: nodes, where each node is one rank."""
    return "node" if processes_per_node == 1 else "rank"
