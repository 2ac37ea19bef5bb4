"""Choice: accuracy and time together."""

from __future__ import annotations

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.curves import accuracy_and_time, accuracy_over_time
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import fastest_and_most_accurate
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Answer, Ask
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, one_per_work, same_work
from orchestrator.report.quantities import Q
from orchestrator.report.topics.accuracy import whole
from orchestrator.report.topics.speed import timed
from orchestrator.report.topics.topic import Findings, Topic


def front(view: WorkloadView) -> Findings:
    """The Pareto front of accuracy and wall time, serial included.

    A strategy is on the front if each other one is claimed to be less accurate or slower. It is off the
    front if another is claimed to be better in one, and is at least as good in the other as measured.
    Strategies that do the same work per step count as equally fast.
    """
    known = whole(timed(_compared(view)))
    groups = [group for group in known if group.learned]
    if len(groups) < 2 or all(group.serial for group in groups):
        return
    accuracies, times = yield [Ask.among(Q.accuracy, groups), Ask.among(Q.train_s, one_per_work(groups))]
    on, undecided = [], []
    off: dict[str, list[tuple[Group, Group]]] = {}  # by what is better, with it
    for group in groups:
        others = [other for other in groups if other is not group]
        if all(_faster(group, other, times) or accuracies.better(group, other) for other in others):
            on.append(view.name(group))
        elif better := next((each for each in others if _dominates(each, group, times, accuracies)), None):
            off.setdefault(view.name(better), []).append((group, better))
        else:
            undecided.append(view.name(group))
    yield Finding.of(
        "front",
        groups,
        [*times.compared, *accuracies.compared],
        at=view.times_at + view.of_ranked,
        not_learned=[view.name(group) for group in known if group not in groups],
        on=on,
        undecided=undecided,
        dominated=[
            {
                "by": by,
                "names": [view.name(group) for group, _ in pairs],
                "same_work": all(same_work(*pair) for pair in pairs),
            }
            for by, pairs in off.items()
        ],
        accuracy=Q.accuracy.means(groups, view.name),
        train_s={view.name(group): Q.train_s.mean_of(group) for group in groups},
        bytes_sent=Q.bytes_sent_per_rank.means(groups, view.name),
    )


def _compared(view: WorkloadView) -> list[Group]:
    return [*view.ranked_candidates, *([view.serial] if view.serial else [])]


def _dominates(one: Group, other: Group, times: Answer, accuracies: Answer) -> bool:
    """Whether `one` is claimed to be better in one quantity, and has no worse a mean in the other."""
    first = {group.work: group for group in times.groups}
    left, right = (Q.train_s.mean_of(first[group.work]) for group in (one, other))
    no_worse = left <= right and Q.accuracy.mean_of(one) >= Q.accuracy.mean_of(other)
    return no_worse and (_faster(one, other, times) or accuracies.better(one, other))


def _faster(one: Group, other: Group, times: Answer) -> bool:
    """Whether `one` is claimed to be faster. The first group stands for all of the same work."""
    first = {group.work: group for group in times.groups}
    return not same_work(one, other) and times.better(first[one.work], first[other.work])


def _accuracy_and_time(subject: Subject) -> Chart | None:
    """None where a time is not what ends a run: faults cost more than it, and a target ends it."""
    workload = subject.view.workload
    return None if workload.faults or workload.target_accuracy is not None else accuracy_and_time(subject)


TOPIC = Topic(
    rules=(front,),
    figures=(
        FigureKind(
            "choice",
            "choice",
            "A point for each configuration, with its number of nodes (ranks, if nodes have several); a "
            "line joins those that differ in nothing else. The bars are 95% intervals.",
            _accuracy_and_time,
            otherwise=fastest_and_most_accurate(lambda view: view.line_groups),
            partitioners="few",
        ),
        FigureKind(
            "accuracy_over_time",
            "choice",
            "One point for each epoch that all seeds trained. If nodes train local models, points are "
            "their mean, and the last point is the averaged model. Evaluation is not included in the "
            "time.",
            accuracy_over_time,
            otherwise=fastest_and_most_accurate(_compared),
            partitioners="few",
        ),
    ),
)
