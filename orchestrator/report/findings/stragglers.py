"""Findings about waiting: for whom, and what one slow node costs all the others."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator.report.findings.base import REMARKS, Finding, evidence, verdict
from orchestrator.report.formats import percent, ratio, seconds
from orchestrator.report.metrics.stragglers import Waited, mean_shares, most_waited_for
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, cell_of
from orchestrator.runtimes.launch_plan import rank_noun

MOST_NAMED = 4
WORTH_TELLING = 0.05  # of the training time
ABOVE_EVEN = 1.5  # times the share of all waiting that each rank would have if all were alike


def straggler_attribution(scene: WorkloadView) -> Iterator[Finding]:
    """The one rank that others waited for, wherever it was much more than its share."""
    told = [(waited, group) for group in scene.usual if (waited := _one_rank(group))]
    told.sort(key=lambda item: -item[0].of_time)
    for waited, group in told[:MOST_NAMED]:
        who = f"{rank_noun(group.shape.processes_per_node)} {waited.rank}"
        others = "the other" if waited.ranks == 2 else "the others"
        yield Finding(
            "finding",
            f"{scene.name(group)} on {group.shape.label}: {who} made {others} wait "
            f"{percent(waited.of_time)} of the training time; {percent(waited.of_waiting)} of all waiting "
            "was for it.",
            evidence([group]),
        )


def _one_rank(group: Group) -> Waited | None:
    if not group.first.result.times_compare:
        return None
    waited = most_waited_for(mean_shares(group))
    if waited is None or waited.of_time < WORTH_TELLING:
        return None
    return waited if waited.of_waiting >= min(ABOVE_EVEN / waited.ranks, 0.9) else None


def slow_node(scene: WorkloadView, comparison: Comparison) -> Iterator[Finding]:
    """What a last node with fewer cores cost, where the same was run with all nodes alike."""
    if scene.shape.bottleneck_cpus is None:
        return
    alike = {_cell(group): group for group in comparison.groups if group.shape.bottleneck_cpus is None}
    for group in scene.usual:
        other = alike.get(_cell(group))
        slow_s = group.over(lambda row: row.train_s)
        fast_s = other.over(lambda row: row.train_s) if other else None
        if other and slow_s and fast_s and _waited_alike(group, other):
            yield Finding(
                "finding",
                f"{scene.name(group)} on {group.shape.label}: "
                f"{seconds(slow_s.mean)}, {ratio(slow_s.mean / fast_s.mean)} times as long as with nodes "
                f"that are alike ({seconds(fast_s.mean)}){REMARKS[verdict(slow_s, fast_s)]}.",
                evidence([group, other]),
            )


def _waited_alike(group: Group, other: Group) -> bool:
    """Whether one slow node is all that differs: over Open MPI it may make all ranks wait asleep.

    On shared cores ranks that wait awake take them from those that work: four on two cores took four times
    as long as with a last node held to 0.25.
    """
    if not group.first.result.times_compare:
        return False
    return group.transport != "mpi" or group.first.run.oversubscribed == other.first.run.oversubscribed


def _cell(group: Group) -> str:
    """What the group computes, and where, but for how slow its last node is."""
    fields = {name: value for name, value in cell_of(group.first).items() if name != "bottleneck_cpus"}
    return json.dumps([fields, group.first.where], sort_keys=True)
