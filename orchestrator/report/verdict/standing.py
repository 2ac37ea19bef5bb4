"""Where configurations stand while a sweep adds seeds: what is decided, and what has no chance."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.formats import JOIN, probability
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.verdict.candidates import MOST_NAMED, Candidate, candidates, why_not
from orchestrator.sweeps.stages import DECIDED, Standing

NO_CHANCE = 0.01  # below which a configuration gets no more seeds


def standing(comparison: Comparison) -> Standing:
    """Where the configurations stand after the seeds that have finished.

    Serial goes on as long as others do, since all are compared with it. A configuration is never left out
    for what is only measured: its chance must be small.
    """
    hopeless: dict[str, str] = {}
    names: dict[str, str] = {}
    lines = []
    for view in map(comparison.view, comparison.workloads):
        found = candidates(view)
        for group in view.groups:
            name = f"{_of(view)}{view.name_on(group)}".replace(JOIN, " ")
            names |= dict.fromkeys((row.key for row in group.rows), name)
        first = found[0] if found else None
        if first and first.sure:
            hopeless |= {row.key: DECIDED for group in view.groups for row in group.rows}
            continue
        for group in view.line_groups:
            if not group.serial and (reason := why_not(view, group)):
                hopeless |= {row.key: reason for row in group.rows}
        for each in found:
            chance = each.speed.probability
            if chance < NO_CHANCE and not each.group.serial:
                reason = f"{probability(chance)} probable to be the choice"
                hopeless |= {row.key: reason for row in each.group.rows}
        lines.append(_line(view, found))
    return Standing(not lines, hopeless, tuple(lines), names)


def _line(view: WorkloadView, found: Sequence[Candidate]) -> str:
    """`all_reduce over mpi on 4 nodes 62%, ddp over gloo on 4 nodes 30%`"""
    shown = [
        f"{view.name_on(each.group)} {probability(each.speed.probability)}" for each in found[:MOST_NAMED]
    ]
    named = ", ".join(shown) or "no configuration that can be chosen"
    return f"{_of(view)}{named}".replace(JOIN, " ")


def _of(view: WorkloadView) -> str:
    """The workload before the name of a configuration, if there are several."""
    return f"{view.workload.label}: " if view.one_of_many else ""
