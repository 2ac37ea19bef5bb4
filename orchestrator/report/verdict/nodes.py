"""At which number of nodes to run a configuration, from the finding on more nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import percent, seconds
from orchestrator.report.metrics.quantities import TRAIN_S
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group


@dataclass(frozen=True)
class NodeCount:
    """text: whether a configuration's number of nodes is the one to choose, as a sentence; may be empty.

    fewer: the same configuration on fewer nodes, if it is claimed to be faster there.
    """

    text: str
    fewer: Group | None = None


def node_count(view: WorkloadView, group: Group, name: str, findings: Sequence[Finding]) -> NodeCount:
    """The neighbouring numbers of nodes of a configuration, as the finding on more nodes decided them."""
    line = sorted(
        (other for other in view.line_groups if other.line == group.line and not other.serial),
        key=lambda other: other.shape.ranks,
    )
    if len({other.shape for other in view.groups if not other.serial}) == 1:
        return NodeCount("No other number of nodes was tried.")
    if len(line) == 1:
        return NodeCount(f"{name} was run on no other number of nodes.")
    steps = _steps(group, findings)
    at = next((index for index, other in enumerate(line) if other is group), None)
    if steps is None or at is None or len(steps) != len(line) - 1:
        return NodeCount("")
    here, parts = group.shape.label, []
    if at:
        before = {"less": "faster", "more": "slower"}.get(steps[at - 1])
        fewer = f"on {here} than on {line[at - 1].shape.short} {_measured(line[at - 1])}"
        parts.append(f"is {before} {fewer}" if before else f"is not shown to be faster {fewer}")
    if at < len(steps):
        after = {"less": "is faster still", "more": "is slower"}.get(steps[at], "is not shown to be faster")
        parts.append(f"{after} on {line[at + 1].shape.short} {_measured(line[at + 1])}")
    slower = at > 0 and steps[at - 1] == "more"
    return NodeCount(f"{name} {' and '.join(parts)}.", line[at - 1] if slower else None)


def _steps(group: Group, findings: Sequence[Finding]) -> Sequence[str] | None:
    """The decision on each step to more nodes."""
    keys = {row.key for row in group.ok_rows}
    for finding in findings:
        if finding.kind == "more_nodes" and keys <= {row.key for row in finding.rows}:
            steps: Sequence[str] = finding.data["steps"]
            return steps
    return None


def _measured(group: Group) -> str:
    """`(0.33 s, 91.1%)`: a speed never appears without its accuracy."""
    accuracy = f", {percent(group.accuracy.mean)}" if group.accuracy else ""
    return f"({seconds(TRAIN_S.mean_of(group))}{accuracy})"
