"""LaunchPlan: what a run needs, as data. Making a plan starts nothing; `create` and `run` execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.results.store import RunPaths
from trainer.node.site import CONTAINERS, Site
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Process:
    """One command. log: the name of its console output, which the ranks of a node share."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class ClusterPlan:
    """What `Runtime.create` starts. Runs whose plans have equal clusters can share one.

    Attributes:
        size: the number of nodes that it takes up between runs, if it is shared.
        shared: whether it takes several runs, one after the other; else it ends with its run.
        processes: the commands that create it.
        request: what an engine is asked for: numbers, texts, lists and mappings.
    """

    size: int = 0
    shared: bool = False
    processes: Sequence[Process] = ()
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchPlan:
    """What a runtime starts for one run, and what it was made from.

    `--dry-run -v` prints a plan, and plan.json records it.

    Attributes:
        spec: the run. paths: the paths of its results. data_dir: the directory of the datasets.
        cluster: the nodes, which other runs may share.
        processes: the commands that start the run on its nodes.
        warm: whether ranks are forked by a process that holds torch and the data.
        site: where the agents of a cluster with a coordinator run.
        requeues: how often a batch system may start the run again.
    """

    spec: RunSpec
    paths: RunPaths
    data_dir: Path
    cluster: ClusterPlan = ClusterPlan()
    processes: Sequence[Process] = ()
    warm: bool = False
    site: Site = CONTAINERS
    requeues: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The plan as plan.json records it."""
        return {
            "topology": self.spec.topology,
            "nodes": self.spec.nodes,
            "processes_per_node": self.spec.processes_per_node,
            "warm": self.warm,
            "cluster": {
                "size": self.cluster.size,
                "shared": self.cluster.shared,
                "processes": [asdict(process) for process in self.cluster.processes],
                "request": dict(self.cluster.request),
            },
            "processes": [asdict(process) for process in self.processes],
            "site": self.site.model_dump(exclude_defaults=True),
        }


def rank_name(rank: int, processes_per_node: int) -> str:
    """What a rank is called, as a process and in messages: `node 1`, or `rank 3 of node 1`."""
    if processes_per_node == 1:
        return f"node {rank}"
    return f"rank {rank} of node {rank // processes_per_node}"


def rank_noun(processes_per_node: int) -> str:
    """What ranks are counted as: nodes, where each node is one rank."""
    return "node" if processes_per_node == 1 else "rank"
