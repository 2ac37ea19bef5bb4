"""LaunchPlan: the exact commands that start one run. Making a plan starts nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.results.store import RunPaths
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Process:
    """One command. log: the name of its console output, which the ranks of a node share."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class LaunchPlan:
    """What a runtime starts for one run, and what it was made from.

    `--dry-run -v` prints a plan, and plan.json records it.
    """

    spec: RunSpec
    paths: RunPaths
    data_dir: Path
    processes: list[Process]
    warm: bool = False  # ranks are forked by a process that holds torch and the data
    script: str | None = None  # of the run's job, where a batch system starts the processes
    allocation: str | None = None  # script of the job that all runs share, which executes `script`
    requeues: int = 0  # how often the batch system may start the run again

    def as_dict(self) -> dict[str, Any]:
        """The plan as plan.json records it."""
        return {
            "topology": self.spec.topology,
            "nodes": self.spec.nodes,
            "processes_per_node": self.spec.processes_per_node,
            "warm": self.warm,
            "processes": [asdict(process) for process in self.processes],
            **({} if self.script is None else {"script": self.script}),
            **({} if self.allocation is None else {"allocation": self.allocation}),
        }


def rank_name(rank: int, processes_per_node: int) -> str:
    """What a rank is called, as a process and in messages: `node 1`, or `rank 3 of node 1`."""
    if processes_per_node == 1:
        return f"node {rank}"
    return f"rank {rank} of node {rank // processes_per_node}"


def rank_noun(processes_per_node: int) -> str:
    """What ranks are counted as: nodes, where each node is one rank."""
    return "node" if processes_per_node == 1 else "rank"
