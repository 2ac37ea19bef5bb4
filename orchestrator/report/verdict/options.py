"""The configurations that a reader chooses between, with their means and intervals as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from orchestrator.report.formats import ABSENT, percent, points, ratio, seconds, size
from orchestrator.report.metrics.intervals import interval_of_accuracy, interval_of_speedup
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.statistics.intervals import ratio_interval
from orchestrator.report.statistics.spread import span
from orchestrator.report.verdict.base import Option
from orchestrator.report.verdict.choice import Choice
from orchestrator.report.verdict.wording import interval_in_points

MOST = 4  # configurations
MOST_COUNTS = 2  # configurations that are also shown on fewer nodes


def options(view: WorkloadView, choice: Choice) -> tuple[Option, ...]:
    """What claims leave to choose from, serial, and the others that were measured best in a quantity.

    The first are followed by themselves on the next smaller number of nodes, unless another option was
    measured no worse in time and accuracy.
    """
    serial = [choice.serial] if choice.serial else []
    chosen = [*choice.best[: MOST - len(serial)], *serial]
    by_time, by_accuracy = choice.usable, sorted(choice.usable, key=lambda group: -ACCURACY.mean_of(group))
    for group in [*by_time[:1], *by_accuracy[:1], *by_time[1:2]]:
        if len(chosen) < MOST and not any(group is other for other in chosen):
            chosen.append(group)
    fewer = [_on_fewer_nodes(view, group, chosen) for group in chosen[:MOST_COUNTS]]
    shown = [each for pair in zip_longest(chosen, fewer) for each in pair if each is not None]
    rivals = [*choice.usable, *serial]
    claimed = choice.claimed
    return tuple(
        option(
            view,
            group,
            best_accuracy=_beats_all(group, rivals, claimed.more_accurate),
            best_time=_beats_all(group, rivals, claimed.faster),
            speedup=_decided_speedup(choice, group),
            compared=not any(group is other for other in fewer),
            difference=_difference_from_serial(choice, group),
        )
        for group in shown
    )


def _on_fewer_nodes(view: WorkloadView, group: Group, chosen: Sequence[Group]) -> Group | None:
    """The configuration on the next smaller number of nodes, if a reader might choose it."""
    fewer = [
        other
        for other in view.line_groups
        if other.line == group.line and not other.serial and 1 < other.shape.ranks < group.shape.ranks
        if ACCURACY.sample(other) and TRAIN_S.sample(other)
    ]
    found = max(fewer, key=lambda other: other.shape.ranks, default=None)
    return None if found and any(_no_worse(other, found) for other in chosen) else found


def _no_worse(one: Group, other: Group) -> bool:
    """Whether `one` was measured no worse in time and accuracy."""
    accurate = ACCURACY.mean_of(one) >= ACCURACY.mean_of(other)
    return accurate and TRAIN_S.mean_of(one) <= TRAIN_S.mean_of(other)


def _difference_from_serial(choice: Choice, group: Group) -> str:
    """`−8.8 points (−24.8 to +2.8)`, with the interval by which the verdict was decided, if it was."""
    if choice.serial is None or group.serial:
        return ABSENT
    found = choice.claimed.accuracy(group, choice.serial)
    if found is None:
        return measured_difference(choice.serial, group)
    return points(found.difference) + (f" ({interval_in_points(found)})" if found.interval else "")


def measured_difference(serial: Group | None, group: Group) -> str:
    """`−8.8 points`: of the mean accuracy from serial's."""
    if serial is None or group.serial or not (ACCURACY.sample(serial) and ACCURACY.sample(group)):
        return ABSENT
    return points(ACCURACY.mean_of(group) - ACCURACY.mean_of(serial))


def _decided_speedup(choice: Choice, group: Group) -> tuple[float, float] | None:
    """The interval of the comparison with serial, by which the verdict was decided; None without one."""
    if choice.serial is None or group.serial:
        return None
    claimed = choice.claimed
    found = claimed.decisions.between(TRAIN_S, choice.serial, claimed.timed_as(group))
    return found.interval if found and claimed.timed_as(group) is group else None


def _beats_all(group: Group, rivals: Sequence[Group], better: Callable[[Group, Group], bool]) -> bool:
    others = [rival for rival in rivals if rival is not group]
    return bool(others) and all(better(group, other) for other in others)


def option(
    view: WorkloadView,
    group: Group,
    time: Metric = lambda row: row.train_s,
    best_accuracy: bool = False,
    best_time: bool = False,
    speedup: tuple[float, float] | None = None,
    compared: bool = True,
    difference: str = ABSENT,
) -> Option:
    """A configuration with its numbers.

    Args:
        time: which of its times is shown.
        speedup: the interval to show; otherwise that of the configuration alone.
        compared: whether its speedup has an interval.
        difference: of its accuracy from serial's, as text.
    """
    accuracy = interval_of_accuracy(group)
    speedup = (speedup or interval_of_speedup(group)) if compared else None
    return Option(
        view.name(group),
        group.shape.label,
        _mean(group, lambda row: row.accuracy, percent, accuracy),
        difference,
        _time(group, time),
        ABSENT if group.serial else _mean(group, lambda row: row.speedup, ratio, speedup, geometric=True),
        _mean(group, lambda row: row.bytes_sent_per_rank, size),
        best_accuracy,
        best_time,
    )


def _mean(
    group: Group,
    metric: Metric,
    write: Callable[[float], str],
    interval: tuple[float, float] | None = None,
    geometric: bool = False,
) -> str:
    spread = group.over(metric, geometric)
    if spread is None:
        return ABSENT
    return write(spread.mean) + (f" ({span(*interval, write)})" if interval else "")


def _time(group: Group, time: Metric) -> str:
    times = [each for row in group.ok_rows if (each := time(row))]
    return _mean(group, time, seconds, ratio_interval(times), geometric=True)
