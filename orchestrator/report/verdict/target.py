"""The verdict on a workload with a target accuracy: the time to it counts."""

from __future__ import annotations

from typing import Any

from orchestrator.report.findings.decide import Claims
from orchestrator.report.findings.sentences import sentence
from orchestrator.report.formats import ABSENT, probability
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.candidates import MOST_NAMED, PROBABLE, at_target, in_question
from orchestrator.report.verdict.options import option, shown
from orchestrator.sweeps.stages import UNFINISHED


def to_target(view: WorkloadView, claims: Claims) -> Verdict:
    """Which configuration reaches the target first, on any number of nodes, among those that always do."""
    found = at_target(view)
    data: dict[str, Any] = {
        "target_accuracy": view.workload.target_accuracy,
        "clock": view.clock,
        "reached": len(found),
        "not_always": [
            view.name_on(group)
            for group in view.line_groups
            if not any(group is each.group for each in found)
            and seeds_at_target(group)[0] < len(group.rows)
        ],
    }
    if not found:
        headline, certainty = sentence("to_target", data), sentence("to_target_certainty", data)
        return Verdict(view.workload, headline, certainty, decided=False)
    few = max(each.seeds for each in found) < MIN_SEEDS
    named = in_question(found, few)
    first, others = named[0], [each.group for each in found[1:]]
    chances = not few and bool(others)
    sure = chances and first.speed.probability >= PROBABLE
    other = next((group for group in others if group.serial), others[0] if others else None)
    data |= {
        "few": few,
        "least_seeds": MIN_SEEDS,
        "advice": first.advice if sure else None,
        "named": [_named(view, each.group) for each in named[:MOST_NAMED]],
        "beside": _named(view, other) if other else None,
        "probability": first.speed.probability,
        "seeds": first.seeds,
        "tolerated": view.tolerance.time,
        "longer": first.speed.longer,
        "sure": first.sure,
        "seeds_to_be_sure": first.seeds_to_be_sure,
        "unfinished": UNFINISHED if view.unfinished else None,
    }
    options = tuple(
        option(
            view,
            each.group,
            claims,
            Q.time_to_target_s,
            chance=probability(each.speed.probability) if chances else ABSENT,
            first=each is first,
        )
        for each in shown(found, named)
    )
    surety = sentence("sure", data) if chances else ""
    headline, certainty = sentence("to_target", data), sentence("to_target_certainty", data)
    return Verdict(view.workload, headline, certainty, sure, options, surety, sentence("sooner", data))


def _named(view: WorkloadView, group: Group) -> dict[str, Any]:
    return {"name": view.name_on(group), "time_s": Q.time_to_target_s.mean_of(group)}
