"""Target accuracy: the configurations that reached it first, with some seeds, or never."""

from __future__ import annotations

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.topics.topic import Findings, Topic


def target_first(view: WorkloadView) -> Findings:
    """The shortest time to the target, among the configurations that reach it with every seed."""
    groups = [
        group
        for group in _with_target(view)
        if len({*seeds_at_target(group)}) == 1 and group.first.times_compare
    ]
    if not groups:
        return
    first, *others = groups = sorted(groups, key=Q.time_to_target_s.mean_of)
    (ranking,) = yield [Ask.best(Q.time_to_target_s, groups)]
    named = [first, *others[:1], *(group for group in others[1:] if group.serial)]
    yield Finding.of(
        "target_first",
        named,
        [ranking.between(group, first) for group in named[1:]],
        target_accuracy=view.workload.target_accuracy,
        clock=view.clock,
        named=[view.name_on(group) for group in named],
        time_to_target_s=[Q.time_to_target_s.mean_of(group) for group in named],
        epochs=[_first_epochs(group) for group in named],
        first=ranking.best is first,
        of=len(groups),
    )


def _first_epochs(group: Group) -> list[int]:
    """The first of the consecutive epochs at the target: the earliest and the latest over seeds."""
    found = [(row.result.last_epoch or 0) - row.run.patience + 1 for row in group.ok_rows]
    return [min(found), max(found)]


def target_some_seeds(view: WorkloadView) -> Findings:
    """The configurations that reached the target with some seeds only."""
    seeds = [(group, *seeds_at_target(group)) for group in _with_target(view)]
    if some := [each for each in seeds if 0 < each[1] < each[2]]:
        yield Finding.of(
            "target_some_seeds",
            [group for group, *_ in some],
            target_accuracy=view.workload.target_accuracy,
            seeds={view.name_on(group): (reached, of) for group, reached, of in some},
        )


def target_never(view: WorkloadView) -> Findings:
    """The configurations that did not reach the target with any seed."""
    if never := [group for group in _with_target(view) if not seeds_at_target(group)[0]]:
        yield Finding.of(
            "target_never",
            never,
            target_accuracy=view.workload.target_accuracy,
            patience=view.workload.patience,
            best_accuracy={view.name_on(group): _best(group) for group in never},
            epochs=view.workload.epochs,
        )


def _with_target(view: WorkloadView) -> list[Group]:
    """The groups to compare, on any number of nodes, if the workload has a target."""
    return [] if view.workload.target_accuracy is None else view.line_groups


def _best(group: Group) -> float | None:
    reached = [point.accuracy for row in group.ok_rows for point in row.result.epochs]
    return max(reached, default=None)


TOPIC = Topic(rules=(target_first, target_some_seeds, target_never))
