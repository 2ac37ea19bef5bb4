"""Finding: a statement that follows from the numbers. All kinds of findings are listed here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.report.findings.decide import Compared
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.formats import JOIN
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Row

FURTHER = "further"
# The questions under which a report shows findings and figures, in its order.
QUESTIONS = {
    "asked": "What the sweep asks",
    "source": "How does it compare with its reference?",
    "links": "Which strategy suits which link?",
    "partitioners": "Which partitioner costs accuracy?",
    "choice": "How accurate is it, and after how much time?",
    "scale": "How does it scale?",
    "predicted": "What would more nodes do?",
    "accuracy": "What does it cost in accuracy?",
    "time": "Where does the time go?",
    "waiting": "Which rank delays the others?",
    "data": "Which samples did each node see?",
    "model": "How is the model split?",
    FURTHER: "Further comparisons",
}


@dataclass(frozen=True)
class Kind:
    """A kind of finding."""

    topic: str  # the heading under which a report shows it
    question: str = FURTHER  # a key of QUESTIONS; cautions are shown by themselves
    caution: bool = False  # whether it limits what may be concluded


KINDS = {
    "asked": Kind("Question of the sweep", "asked"),
    "asked_unanswered": Kind("Question of the sweep", "asked"),
    "ablation": Kind("Ablation", "source"),
    "ablation_incomplete": Kind("Ablation", "source"),
    "published_time": Kind("Published", "source"),
    "textbook_curve_equal": Kind("Textbook optimizer", "source"),
    "textbook_curve_differs": Kind("Textbook optimizer", caution=True),
    "links": Kind("Links", "links"),
    "front": Kind("Accuracy and time", "choice"),
    "target_first": Kind("Target accuracy", "scale"),
    "target_some_seeds": Kind("Target accuracy", "scale"),
    "target_never": Kind("Target accuracy", "scale"),
    "fastest": Kind("Speed", "scale"),
    "many_nodes": Kind("Many nodes", "scale"),
    "more_nodes": Kind("More nodes", "scale"),
    "predicted": Kind("Prediction", "predicted"),
    "predictions_unusable": Kind("Prediction", caution=True),
    "real_nodes_unusable": Kind("Cluster time", caution=True),
    "slower_than_serial": Kind("Speed", "scale"),
    "transports": Kind("Transport", "time"),
    "all_reduce_and_ddp": Kind("Exchange", "time"),
    "mean_gradient": Kind("Exchange", "time"),
    "straggler": Kind("Stragglers", "waiting"),
    "least_memory": Kind("Memory", "model"),
    "bubble": Kind("Bubble", "model"),
    "split_point": Kind("Split point", "model"),
    "best_accuracy": Kind("Accuracy", "accuracy"),
    "fewer_updates": Kind("Accuracy", "accuracy"),
    "noise_scale": Kind("Noise scale", "accuracy"),
    "common_seeds": Kind("Common seeds", "accuracy"),
    "averaging": Kind("Averaging", "accuracy"),
    "variant": Kind("Parameters"),
    "partitioner_loss": Kind("Partitioning", "partitioners"),
    "partitioner_effect": Kind("Partitioning", "partitioners"),
    "slow_node": Kind("Slow node", "waiting"),
    "fault_cost": Kind("Faults"),
    "accuracy_is": Kind("What accuracy is", caution=True),
    "best_loss": Kind("Best loss"),
    "conditions_unequal": Kind("Unequal conditions", caution=True),
    "scaled_beyond_the_rule": Kind("Learning rate", caution=True),
    "cluster_time": Kind("Cluster time", "time"),
    "cluster_time_uncalibrated": Kind("Cluster time", caution=True),
    "cpu_inflation": Kind("Cluster time", caution=True),
    "disturbed": Kind("Other load", caution=True),
    "no_cluster_time": Kind("Cluster time", caution=True),
    "link_not_enforced": Kind("Links", caution=True),
    "shared_cores": Kind("Shared cores", caution=True),
    "too_few_seeds": Kind("Too few seeds", caution=True),
    "undecided": Kind("Undecided", caution=True),
    "drift": Kind("Drift", caution=True),
    "no_drift": Kind("Drift", "time"),
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
    "sent_beyond_count": Kind("Bytes", caution=True),
    "conditions_differ": Kind("Conditions", caution=True),
}


@dataclass(frozen=True)
class Finding:
    """Numbers that say something, the runs they come from, and the sentence or two over these numbers.

    data: the numbers and names in the text, unrounded; times in seconds, amounts in bytes, shares 0 … 1.
    """

    kind: str  # a key of KINDS
    rows: tuple[Row, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    workload: Workload | None = None  # what was trained, if the sweep has several workloads

    @classmethod
    def of(
        cls,
        kind: str,
        groups: Iterable[Group | None],
        compared: Iterable[Compared] | None = None,
        /,
        *,
        workload: Workload | None = None,
        **data: Any,
    ) -> Finding:
        """A finding on the ok runs of these groups, each once.

        compared: the comparisons that it follows from, which are in its data, too.
        """
        if compared is not None:
            data["compared"] = [each.data() for each in compared]
        return cls(kind, evidence(groups), data, workload)

    @cached_property
    def text(self) -> str:
        """The template of its kind over its data."""
        return sentence(self.kind, self.data)

    @property
    def topic(self) -> str:
        return KINDS[self.kind].topic

    @property
    def question(self) -> str:
        return KINDS[self.kind].question

    @property
    def first_sentence(self) -> str:
        """What it says first, for a figure that shows it."""
        return first_sentence(self.text)

    @property
    def anchor(self) -> str:
        """Where a page shows the findings of its kind."""
        return f"finding-{self.kind}"

    @property
    def caution(self) -> bool:
        """Whether it limits which numbers may be compared or trusted."""
        return KINDS[self.kind].caution


def first_sentence(text: str) -> str:
    first, more, _ = text.partition(". ")
    return f"{first}." if more else first


def evidence(groups: Iterable[Group | None]) -> tuple[Row, ...]:
    """The ok runs of the groups, each once."""
    rows = {row.key: row for group in groups if group for row in group.ok_rows}
    return tuple(rows.values())


def findings_json(findings: Sequence[Finding]) -> str:
    """findings.json: every finding with its numbers, its runs and what was decided."""
    entries = [
        {
            "kind": finding.kind,
            "topic": finding.topic,
            "caution": finding.caution,
            "workload": finding.workload.label if finding.workload else None,
            "text": finding.text.replace(JOIN, " "),
            "runs": [row.key for row in finding.rows],
            "data": finding.data,
        }
        for finding in findings
    ]
    return json.dumps(entries, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
