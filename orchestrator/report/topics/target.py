"""Target accuracy: the configurations that reached it first, with some seeds, or never."""

from __future__ import annotations

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.formats import whole
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import last_epoch, seeds_at_target
from orchestrator.report.statistics.spread import Spread
from orchestrator.report.topics.topic import Findings, Topic


def target_first(view: WorkloadView) -> Findings:
    """The shortest wall time to the target, among the configurations that reach it with every seed."""
    groups = sorted(filter(_timed, _with_target(view)), key=Q.time_to_target_s.mean_of)
    if not groups:
        return
    first, *others = groups
    (ranking,) = yield [Ask.best(Q.time_to_target_s, groups)]
    named = [first, *others[:1], *(group for group in others[1:] if group.serial)]
    yield Finding(
        "target_first",
        evidence(named),
        {
            "target_accuracy": view.workload.target_accuracy,
            "clock": view.clock,
            "time_to_target_s": Q.time_to_target_s.means(groups, view.name_on),
            "shortest": view.name_on(first),
            "first": view.name_on(first) if ranking.best is first else None,
            "epochs": {view.name_on(group): _epochs(group) for group in named},
            "to_first": compared_data(ranking.between(group, first) for group in named[1:]),
            "compared": compared_data(ranking.compared),
        },
    )


def target_some_seeds(view: WorkloadView) -> Findings:
    """The configurations that reached the target with some seeds only."""
    some = [
        group for group in _with_target(view) if 0 < seeds_at_target(group)[0] < seeds_at_target(group)[1]
    ]
    if some:
        seeds = {view.name_on(group): seeds_at_target(group) for group in some}
        data = {"target_accuracy": view.workload.target_accuracy, "seeds": seeds}
        yield Finding("target_some_seeds", evidence(some), data)


def target_never(view: WorkloadView) -> Findings:
    """The configurations that did not reach the target with any seed."""
    never = [group for group in _with_target(view) if not seeds_at_target(group)[0]]
    if never:
        yield Finding(
            "target_never",
            evidence(never),
            {
                "target_accuracy": view.workload.target_accuracy,
                "patience": view.workload.patience,
                "best_accuracy": {
                    view.name_on(group): best.high if (best := _best(group)) else None for group in never
                },
                "epochs": view.workload.epochs,
            },
        )


def _with_target(view: WorkloadView) -> list[Group]:
    """The groups to compare, on any number of nodes, if the workload has a target."""
    return [] if view.workload.target_accuracy is None else view.line_groups


def _timed(group: Group) -> bool:
    """Whether all seeds reached the target and their times are comparable."""
    reached, seeds = seeds_at_target(group)
    return 0 < reached == seeds and group.first.times_compare


def _epochs(group: Group) -> str:
    """`3`, `3–4`: the first of the consecutive epochs at the target."""
    first = group.over(lambda row: (last_epoch(row) or 0) - row.run.patience + 1)
    return first.range(whole) if first else ""


def _best(group: Group) -> Spread | None:
    return Spread.of(
        max(point.accuracy for point in row.result.epochs) for row in group.ok_rows if row.result.epochs
    )


TOPIC = Topic(rules=(target_first, target_some_seeds, target_never))
