"""Choice: accuracy and time together."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.curves import accuracy_and_time, accuracy_over_time
from orchestrator.report.figures.kind import FigureKind, Subject
from orchestrator.report.figures.sentences import fastest_and_most_accurate
from orchestrator.report.findings.base import evidence, said
from orchestrator.report.findings.decide import Answer, Ask, compared_data
from orchestrator.report.formats import first_few, percent, seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, one_per_work, same_work
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import target_reached
from orchestrator.report.topics.speed import timed
from orchestrator.report.topics.topic import Findings, Topic


def front(view: WorkloadView) -> Findings:
    """The Pareto front of accuracy and wall time, serial included.

    A strategy is on the front if each other one is claimed to be less accurate or slower. It is off the
    front if another is claimed to be better in one, and is at least as good in the other as measured.
    Strategies that do the same work per step count as equally fast.
    """
    groups = [
        group
        for group in timed([*view.ranked_candidates, *([view.serial] if view.serial else [])])
        if Q.accuracy.sample(group) and not any(map(target_reached, group.ok_rows))
    ]
    if len(groups) < 2 or all(group.serial for group in groups):
        return
    accuracies, times = yield [Ask.among(Q.accuracy, groups), Ask.among(Q.train_s, one_per_work(groups))]
    on, off, unknown = [], [], []
    for group in groups:
        better = _dominating(group, groups, times, accuracies)
        if _on_front(group, groups, times, accuracies):
            on.append(group)
        elif better:
            off.append((group, better))
        else:
            unknown.append(group)
    yield said(
        "front",
        f"{view.times_at}{view.of_ranked}, {_positions(view, on, off, unknown)}.",
        evidence(groups),
        {
            "on": [view.name(group) for group in on],
            "off": [view.name(group) for group, _ in off],
            "undecided": [view.name(group) for group in unknown],
            "accuracy": {view.name(group): Q.accuracy.mean_of(group) for group in groups},
            "train_s": {view.name(group): Q.train_s.mean_of(group) for group in groups},
            "bytes_sent": Q.bytes_sent_per_rank.means(groups, view.name),
            "compared": compared_data([*times.compared, *accuracies.compared]),
        },
    )


def _positions(
    view: WorkloadView, on: Sequence[Group], off: Sequence[tuple[Group, Group]], unknown: Sequence[Group]
) -> str:
    """Which groups are on the front, which are not, and which may be."""
    parts = []
    if on:
        parts.append(f"{_described(view, on)} {_verb(on)} likely to be on the front of accuracy and time")
    if unknown:
        whether = f"{'W' if on else 'w'}hether {_described(view, unknown)} {_verb(unknown)}"
        parts.append(f"{whether} on the front of accuracy and time is undecided")
    by_better: dict[int, list[tuple[Group, Group]]] = {}
    for pair in off:
        by_better.setdefault(id(pair[1]), []).append(pair)
    for pairs in by_better.values():
        worse = [group for group, _ in pairs]
        parts.append(
            f"Off it {_verb(worse)} {_described(view, worse)}: {view.name(pairs[0][1])} is better in one, "
            f"and {_no_worse(pairs)} in the other"
        )
    return ". ".join(parts)


def _no_worse(pairs: Sequence[tuple[Group, Group]]) -> str:
    """How a better group compares where no difference is claimed."""
    if all(same_work(*pair) for pair in pairs):
        return "does the same work per step, which counts as equal,"
    return "was measured no worse"


def _verb(groups: Sequence[Group]) -> str:
    return "is" if len(groups) == 1 else "are"


def _on_front(group: Group, groups: Sequence[Group], times: Answer, accuracies: Answer) -> bool:
    return all(
        _faster(group, other, times) or accuracies.better(group, other)
        for other in groups
        if other is not group
    )


def _dominating(group: Group, groups: Sequence[Group], times: Answer, accuracies: Answer) -> Group | None:
    """A group that is claimed to be better in one quantity and measured no worse in the other."""
    for other in groups:
        if other is group:
            continue
        faster = Q.train_s.mean_of(_timed_as(other, times)) <= Q.train_s.mean_of(_timed_as(group, times))
        as_accurate = Q.accuracy.mean_of(other) >= Q.accuracy.mean_of(group)
        better = _faster(other, group, times) or accuracies.better(other, group)
        if faster and as_accurate and better:
            return other
    return None


def _faster(one: Group, other: Group, times: Answer) -> bool:
    """Whether `one` is claimed to be faster; never of two groups that do the same work."""
    left, right = _timed_as(one, times), _timed_as(other, times)
    return left is not right and times.better(left, right)


def _timed_as(group: Group, times: Answer) -> Group:
    """The ranked group that does the same work, whose time stands for this one's."""
    return next(each for each in times.groups if same_work(each, group))


def _described(view: WorkloadView, groups: Sequence[Group]) -> str:
    """`one_shot over mpi (94.1%, 2.31 s, 1.2 MB sent per rank) and …`: the first few."""
    names = []
    for group in groups:
        sent = Q.bytes_sent_per_rank.over(group)
        amount = f", {size(sent.mean)} sent per rank" if sent and sent.mean else ""
        reached, took = Q.accuracy.mean_of(group), Q.train_s.mean_of(group)
        names.append(f"{view.name(group)} ({percent(reached)}, {seconds(took)}{amount})")
    return first_few(names)


def _accuracy_and_time(subject: Subject) -> Chart | None:
    """None where a time is not what ends a run: faults cost more than it, and a target ends it."""
    workload = subject.view.workload
    return None if workload.faults or workload.target_accuracy is not None else accuracy_and_time(subject)


def _compared(view: WorkloadView) -> list[Group]:
    return [*view.ranked_candidates, *([view.serial] if view.serial else [])]


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
