"""Finding: a statement that follows from the numbers. All kinds of findings are listed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Row


@dataclass(frozen=True)
class Kind:
    """topic: the heading under which a report shows it. caution: it limits what may be concluded."""

    topic: str
    caution: bool = False


KINDS = {
    "asked": Kind("Question of the sweep"),
    "asked_unanswered": Kind("Question of the sweep"),
    "ablation": Kind("Ablation"),
    "ablation_incomplete": Kind("Ablation"),
    "published_time": Kind("Published"),
    "textbook_curve_equal": Kind("Textbook optimizer"),
    "textbook_curve_differs": Kind("Textbook optimizer", caution=True),
    "links": Kind("Links"),
    "front": Kind("Accuracy and time"),
    "target_first": Kind("Target accuracy"),
    "target_some_seeds": Kind("Target accuracy"),
    "target_never": Kind("Target accuracy"),
    "fastest": Kind("Speed"),
    "more_nodes": Kind("More nodes"),
    "slower_than_serial": Kind("Speed"),
    "transports": Kind("Transport"),
    "all_reduce_and_ddp": Kind("Exchange"),
    "mean_gradient": Kind("Exchange"),
    "straggler": Kind("Stragglers"),
    "least_memory": Kind("Memory"),
    "bubble": Kind("Bubble"),
    "split_point": Kind("Split point"),
    "best_accuracy": Kind("Accuracy"),
    "fewer_updates": Kind("Accuracy"),
    "averaging": Kind("Averaging"),
    "variant": Kind("Parameters"),
    "partitioner_loss": Kind("Partitioning"),
    "partitioner_effect": Kind("Partitioning"),
    "slow_node": Kind("Slow node"),
    "fault_cost": Kind("Faults"),
    "accuracy_is": Kind("What accuracy is", caution=True),
    "conditions_unequal": Kind("Unequal conditions", caution=True),
    "scaled_beyond_the_rule": Kind("Learning rate", caution=True),
    "cluster_time": Kind("Cluster time"),
    "cluster_time_uncalibrated": Kind("Cluster time", caution=True),
    "cpu_inflation": Kind("Cluster time", caution=True),
    "disturbed": Kind("Other load", caution=True),
    "no_cluster_time": Kind("Cluster time", caution=True),
    "link_not_enforced": Kind("Links", caution=True),
    "shared_cores": Kind("Shared cores", caution=True),
    "too_few_seeds": Kind("Too few seeds", caution=True),
    "undecided": Kind("Undecided", caution=True),
    "drift": Kind("Drift", caution=True),
    "no_drift": Kind("Drift"),
    "not_learned": Kind("Not learned", caution=True),
    "no_serial": Kind("No serial run", caution=True),
    "other_seeds": Kind("Other seeds", caution=True),
    "failed": Kind("Failed", caution=True),
    "pending": Kind("Pending", caution=True),
    "not_verified": Kind("Verification", caution=True),
    "replicas_differ": Kind("Verification", caution=True),
    "out_of_memory": Kind("Out of memory", caution=True),
    "thread_ranks": Kind("Ranks as threads", caution=True),
    "no_common_clock": Kind("Stragglers", caution=True),
    "strategy_caveat": Kind("Caveat", caution=True),
    "conditions_differ": Kind("Conditions", caution=True),
}


@dataclass(frozen=True)
class Finding:
    """A sentence or two that follow from numbers, with these numbers and the runs they come from.

    kind: a key of KINDS. data: the numbers and names in the text, unrounded; times in seconds, amounts in
    bytes, shares 0 … 1. workload: what was trained, if the sweep has several workloads.
    """

    kind: str
    text: str
    rows: tuple[Row, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    workload: Workload | None = None

    @property
    def topic(self) -> str:
        return KINDS[self.kind].topic

    @property
    def first_sentence(self) -> str:
        """What it says first, for a figure that shows it."""
        first, more, _ = self.text.partition(". ")
        return f"{first}." if more else first

    @property
    def anchor(self) -> str:
        """Where a page shows the findings of its kind."""
        return f"finding-{self.kind}"

    @property
    def caution(self) -> bool:
        """Whether it limits which numbers may be compared or trusted."""
        return KINDS[self.kind].caution


def evidence(groups: Iterable[Group | None]) -> tuple[Row, ...]:
    """The ok runs of the groups, each once."""
    rows = {row.key: row for group in groups if group for row in group.ok_rows}
    return tuple(rows.values())
