"""Speed: the fastest strategies, their speedup, and what more nodes gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from orchestrator.report.figures.over_nodes import over_nodes
from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, Compared, compared_data
from orchestrator.report.formats import count, first_few, listed, percent, ratio, seconds
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, one_per_work
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import same_epochs
from orchestrator.report.topics.topic import Findings, Topic

MAX_NAMED = 4  # in one sentence


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
    serial = timed_serial(view, groups)
    ranking, from_serial = yield [Ask.best(Q.train_s, groups), Ask.against(Q.train_s, serial, groups)]
    against = from_serial.compared
    first = groups[0]
    speedup = next((each for each in against if each.left is first), None)
    text = f"{view.times_at}{view.of_ranked}, {view.name(first)} took {time_and_accuracy(first)}"
    if ranking.best is first:
        text += f", the fastest of {count(len(groups), 'configuration')}"
    data = {
        "strategy": view.name(first),
        "ranks": view.shape.ranks,
        "train_s": Q.train_s.mean_of(first),
        "fastest": ranking.best is first,
        "compared": compared_data([*ranking.of(first), *([speedup] if speedup else [])]),
    }
    if serial and speedup:
        data["compared_with_serial"] = compared_data(against)
        text += f"; serial took {time_and_accuracy(serial)}"
        data |= speedup_data(speedup)
        if speedup.verdict != "too_few_seeds":
            text += f": {write_speedup(speedup)}"
    text += "."
    if ranking.best is not first and len(groups) > 1:
        even = [view.name(group) for group in ranking.may_be_best if group is not first]
        if even:
            text += f" Which is the fastest is undecided between it and {first_few(even)}."
    yield Finding("fastest", text, evidence([first, serial]), data)


def time_and_accuracy(group: Group) -> str:
    """`3.21 s and reached 96.4%`: a speed never appears without its accuracy."""
    accuracy = f" and reached {percent(group.accuracy.mean)}" if group.accuracy else ""
    return f"{seconds(Q.train_s.mean_of(group))}{accuracy}"


def write_speedup(compared: Compared) -> str:
    """`speedup 2.49 (2.31 to 2.69), efficiency 62%`: serial's geometric mean over the strategy's."""
    speedup, interval = _speedup(compared), _speedup_interval(compared)
    bounds = f" ({ratio(interval[0])} to {ratio(interval[1])}{compared.certainty})" if interval else ""
    return f"speedup {ratio(speedup)}{bounds}, efficiency {percent(speedup / compared.left.shape.ranks)}"


def speedup_data(compared: Compared) -> dict[str, object]:
    speedup = _speedup(compared)
    return {
        "serial_train_s": compared.values[1],
        "speedup": speedup,
        "speedup_interval": _speedup_interval(compared),
        "faster": compared.left_is_better,
        "slower": compared.right_is_better,
        "efficiency": speedup / compared.left.shape.ranks,
    }


def _speedup(compared: Compared) -> float:
    return compared.values[1] / compared.values[0]


def _speedup_interval(compared: Compared) -> tuple[float, float] | None:
    if compared.interval is None:
        return None
    low, high = compared.interval
    return 1 / high, 1 / low


def slower_than_serial(view: WorkloadView) -> Findings:
    """The strategies that are slower than serial."""
    groups = timed(one_per_work(view.ranked_candidates))
    serial = timed_serial(view, groups)
    if not serial:
        return
    (against,) = yield [Ask.against(Q.train_s, serial, groups)]
    slower = [each for each in against.compared if each.right_is_better]
    if not slower:
        return
    named = slower if len(slower) <= MAX_NAMED else [slower[0], slower[-1]]
    parts = [
        f"{view.name(each.left)} ({seconds(each.values[0])}, {each.written}; "
        f"{exchange_share(each.left)} of it exchange)"
        for each in named
    ]
    number = f"{len(slower)} of {count(len(against.compared), 'configuration')}"
    verb = "was" if len(slower) == 1 else "were"
    ends = listed(parts) if named is slower else f"from {' to '.join(parts)}"
    yield Finding(
        "slower_than_serial",
        f"{view.times_at}{view.of_ranked}, {number} {verb} slower than serial "
        f"({seconds(Q.train_s.mean_of(serial))}): {ends}.",
        evidence([*(each.left for each in slower), serial]),
        {
            "serial_train_s": Q.train_s.mean_of(serial),
            "train_s": {view.name(each.left): each.values[0] for each in slower},
            "named": [view.name(each.left) for each in named],
            "of": len(against.compared),
            "compared": compared_data(slower),
        },
    )


def exchange_share(group: Group) -> str:
    share = Q.exchange_share.over(group)
    return percent(share.mean) if share else "an unknown share"


def more_nodes(view: WorkloadView) -> Findings:
    """What more nodes gain: from the fewest to the most, and at which number a strategy stops to gain."""
    lines = list(by_line(view))
    *steps_of, wholes = yield [
        *(Ask.of(Q.train_s, [(more, fewer) for fewer, more in pairwise(groups)]) for groups in lines),
        Ask.of(Q.train_s, [(groups[-1], groups[0]) for groups in lines]),
    ]
    for groups, of_line, whole in zip(lines, steps_of, wholes.compared, strict=True):
        steps = of_line.compared
        if any(each.verdict == "too_few_seeds" for each in steps):
            continue
        first = groups[0]
        parts = [f"{_time(first)} on {first.shape.label}"]
        parts += [f"{_time(each.left)} on {each.left.shape.short}, {each.written}" for each in steps]
        yield Finding(
            "more_nodes",
            f"{view.subject(first)} took {'; '.join(parts)}. {_worth(steps, whole)}",
            evidence(groups),
            {
                "strategy": view.name(first),
                "ranks": [group.shape.ranks for group in groups],
                "train_s": [Q.train_s.mean_of(group) for group in groups],
                "steps": [each.verdict for each in steps],
                "whole": whole.verdict,
                "compared": compared_data([*steps, whole] if len(steps) > 1 else steps),
            },
        )


def _time(group: Group) -> str:
    """A speed never appears without its accuracy."""
    accuracy = f" ({percent(group.accuracy.mean)})" if group.accuracy else ""
    return f"{seconds(Q.train_s.mean_of(group))}{accuracy}"


def _worth(steps: Sequence[Compared], whole: Compared) -> str:
    """Whether it became faster from the fewest to the most nodes, and where it became slower."""
    fewest, most = whole.right.shape.short, whole.left.shape.label
    changed = {"less": "faster", "more": "slower"}.get(whole.verdict)
    if changed:
        text = f"From {fewest} to {most}, it became {changed}"
        text += f": {whole.written}" if len(steps) > 1 else ""
    elif whole.within_tolerance:
        text = f"From {fewest} to {most}, its time is the same within the tolerance"
    else:
        text = f"Whether it becomes faster from {fewest} to {most} is undecided"
    against = [each for each in steps if each.verdict == "more"] if len(steps) > 1 else []
    if against:
        where = [f"{each.right.shape.short} to {each.left.shape.label}" for each in against]
        text += f". It became slower from {listed(where)}"
    return f"{text}."


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
            "{clock} time",
            "{clock} time, s",
            "Means with 95% intervals. Grey line: serial. Shaded: nodes share cores. With a target "
            "accuracy: time to the end of the epoch in which it was reached, without evaluation, of the "
            "seeds that reached it; of several consecutive epochs, the first counts.",
            shows=("target_first", "target_some_seeds", "target_never", "many_nodes"),
        ),
        over_nodes(
            "speedup",
            Q.speedup,
            "scale",
            "speedup",
            "speedup",
            "Relative to the serial run of the same workload and seed. Dashed: ideal speedup. Shaded: "
            "nodes share cores.",
            shows=("fastest",),
        ),
        over_nodes(
            "cpu_time_speedup",
            Q.cpu_time_speedup,
            "scale",
            "CPU-time speedup",
            "speedup",
            "By the CPU time of the busiest rank: the speedup if every rank had a core of its own and "
            "communication were free. Pipeline stages still wait for each other.",
            only_on="wall",  # cluster time replaces it
        ),
    ),
)
