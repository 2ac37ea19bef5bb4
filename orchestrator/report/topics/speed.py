"""Speed: the fastest strategies, their speedup, and what more nodes gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from orchestrator.report.figures.over_nodes import over_nodes
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, Compared
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, one_per_work
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import same_epochs
from orchestrator.report.topics.topic import Findings, Topic

TO_TARGET = (
    "Time to the end of the epoch in which the target accuracy was reached, without evaluation, of the "
    "seeds that reached it. If several consecutive epochs were required, the first of them counts."
)


def timed(groups: Sequence[Group]) -> list[Group]:
    """The groups with comparable wall times, the fastest first.

    Empty if they trained for different numbers of epochs, as with a target accuracy.
    """
    comparable = [group for group in groups if group.first.times_compare and Q.train_s.sample(group)]
    if not same_epochs(row for group in comparable for row in group.ok_rows):
        return []
    return sorted(comparable, key=Q.train_s.mean_of)


def timed_serial(view: WorkloadView, groups: Sequence[Group]) -> Group | None:
    """The serial group, if its wall time is comparable with those of these groups."""
    return view.serial if view.serial and view.serial in timed([*groups, view.serial]) else None


def fastest(view: WorkloadView) -> Findings:
    """The strategy with the shortest wall time, its accuracy and speedup, and those that may be as fast."""
    groups = timed(one_per_work(view.ranked_candidates))
    if not groups:
        return
    first, serial = groups[0], timed_serial(view, groups)
    ranking, from_serial = yield [Ask.best(Q.train_s, groups), Ask.against(Q.train_s, serial, groups)]
    yield Finding.of(
        "fastest",
        [first, serial],
        [*ranking.of(first), *from_serial.compared],
        at=view.times_at + view.of_ranked,
        strategy=view.name(first),
        train_s=Q.train_s.mean_of(first),
        accuracy=accuracy_of(first),
        fastest=ranking.best is first,
        of=len(groups),
        may_be_fastest=[view.name(group) for group in ranking.may_be_best if group is not first],
        **(speedup_data(from_serial.between(first, serial)) if serial else {}),
    )


def accuracy_of(group: Group) -> float | None:
    """Its mean accuracy: a speed never appears without it."""
    return found.mean if (found := Q.accuracy.over(group)) else None


def speedup_data(against_serial: Compared) -> dict[str, Any]:
    """Serial's geometric mean over the strategy's, with the interval."""
    time, serial = against_serial.values
    interval = against_serial.interval
    return {
        "serial_train_s": serial,
        "serial_accuracy": accuracy_of(against_serial.right),
        "speedup": serial / time,
        "speedup_interval": interval and (1 / interval[1], 1 / interval[0]),
        "efficiency": serial / time / against_serial.left.shape.ranks,
        "against_serial": against_serial.data(),
    }


def slower_than_serial(view: WorkloadView) -> Findings:
    """The strategies that are slower than serial."""
    groups = timed(one_per_work(view.ranked_candidates))
    serial = timed_serial(view, groups)
    (against,) = yield [Ask.against(Q.train_s, serial, groups)]
    slower = [each for each in against.compared if each.right_is_better]
    if not slower:
        return
    groups = [each.left for each in slower]
    yield Finding.of(
        "slower_than_serial",
        [*groups, serial],
        slower,
        at=view.times_at + view.of_ranked,
        strategies=[view.name(group) for group in groups],
        exchange_share=Q.exchange_share.means(groups, view.name),
        of=len(against.compared),
    )


def more_nodes(view: WorkloadView) -> Findings:
    """What more nodes gain: from the fewest to the most, and at which number a strategy stops to gain."""
    lines = list(by_line(view))
    *steps_of, wholes = yield [
        *(Ask.of(Q.train_s, [(more, fewer) for fewer, more in pairwise(groups)]) for groups in lines),
        Ask.of(Q.train_s, [(groups[-1], groups[0]) for groups in lines]),
    ]
    for groups, steps, whole in zip(lines, steps_of, wholes.compared, strict=True):
        verdicts = [each.verdict for each in steps.compared]
        if "too_few_seeds" in verdicts:
            continue
        yield Finding.of(
            "more_nodes",
            groups,
            steps.compared if len(verdicts) == 1 else [*steps.compared, whole],
            subject=view.subject(groups[0]),
            ranks=[group.shape.ranks for group in groups],
            shapes=[group.shape.short for group in groups],
            nodes=[group.shape.label for group in groups],
            train_s=[Q.train_s.mean_of(group) for group in groups],
            accuracy=[accuracy_of(group) for group in groups],
            steps=verdicts,
            whole=whole.verdict,
        )


def by_line(view: WorkloadView) -> Iterator[list[Group]]:
    """The groups that differ only in their number of nodes, the fewest first; at least two."""
    lines: dict[tuple[str, str, str, int], list[Group]] = {}
    for group in timed(view.line_groups):
        if not group.serial and not group.shape.slower_nodes:
            lines.setdefault(group.line, []).append(group)
    for groups in lines.values():
        groups.sort(key=lambda group: group.shape.ranks)
        if len({group.shape.ranks for group in groups}) == len(groups) > 1:
            yield groups


TOPIC = Topic(
    rules=(more_nodes, fastest, slower_than_serial),
    figures=(
        over_nodes(
            "time",
            Q.train_s,
            "scale",
            "Means with 95% intervals. Grey line: serial. Shaded: nodes share cores.",
            shows=("target_first", "target_some_seeds", "target_never", "many_nodes"),
            note=lambda subject: "" if subject.view.workload.target_accuracy is None else TO_TARGET,
        ),
        over_nodes(
            "speedup",
            Q.speedup,
            "scale",
            "Relative to the serial run of the same workload and seed. Dashed: ideal speedup. Shaded: "
            "nodes share cores.",
            shows=("fastest",),
        ),
        over_nodes(
            "cpu_time_speedup",
            Q.cpu_time_speedup,
            "scale",
            "By the CPU time of the busiest rank: the speedup if every rank had a core of its own and "
            "communication were free. Pipeline stages still wait for each other.",
            only_on="wall",  # cluster time replaces it
        ),
    ),
)
