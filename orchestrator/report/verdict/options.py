"""The configurations that a reader chooses between, with their means and intervals as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.report.findings.claims import Claims
from orchestrator.report.formats import ABSENT, percent, points, probability, ratio, seconds, size
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.quantities import ACCURACY, BYTES_SENT_PER_RANK, SPEEDUP, TRAIN_S
from orchestrator.report.statistics.intervals import ratio_interval
from orchestrator.report.statistics.spread import span
from orchestrator.report.verdict.base import Option
from orchestrator.report.verdict.candidates import MOST_NAMED, Candidate

MOST = 5  # configurations


def options(
    view: WorkloadView,
    found: Sequence[Candidate],
    named: Sequence[Candidate],
    serial: Group | None,
    claims: Claims,
    chances: bool = False,
) -> tuple[Option, ...]:
    """The configurations that the headline names, serial, and the next most probable ones.

    chances: whether to show how probable each is.
    """
    shown = [*named[:MOST_NAMED], *(each for each in found if each.group is serial), *found]
    distinct = list({id(each): each for each in shown}.values())[:MOST]
    return tuple(
        option(
            view,
            each.group,
            speedup=_compared_speedup(each.group, serial, claims),
            difference=_difference_from_serial(each.group, serial, claims),
            chance=probability(each.speed.probability) if chances else ABSENT,
        )
        for each in distinct
    )


def _difference_from_serial(group: Group, serial: Group | None, claims: Claims) -> str:
    """`−8.8 points (−24.8 to +2.8)`, with the interval of the comparison in findings, if there is one."""
    if serial is None or group.serial:
        return ABSENT
    found = claims.between(ACCURACY, group, serial)
    if found is None:
        return measured_difference(serial, group)
    interval = " to ".join(map(ACCURACY.write_bound, found.interval or ()))
    return ACCURACY.write_difference(*found.values) + (f" ({interval})" if interval else "")


def _compared_speedup(group: Group, serial: Group | None, claims: Claims) -> tuple[float, float] | None:
    """The interval of the comparison with serial in findings; None without one."""
    found = None if serial is None else claims.between(TRAIN_S, serial, group)
    return found.interval if found else None


def measured_difference(serial: Group | None, group: Group) -> str:
    """`−8.8 points`: of the mean accuracy from serial's."""
    if serial is None or group.serial or not (ACCURACY.sample(serial) and ACCURACY.sample(group)):
        return ABSENT
    return points(ACCURACY.mean_of(group) - ACCURACY.mean_of(serial))


def option(
    view: WorkloadView,
    group: Group,
    time: Metric = lambda row: row.train_s,
    speedup: tuple[float, float] | None = None,
    difference: str = ABSENT,
    chance: str = ABSENT,
) -> Option:
    """A configuration with its numbers.

    Args:
        time: which of its times is shown.
        speedup: the interval to show; otherwise that of the configuration alone.
        difference: of its accuracy from serial's, as text.
        chance: to be the right choice, as text.
    """
    accuracy = ACCURACY.interval(group)
    speedup = speedup or SPEEDUP.interval(group)
    return Option(
        view.name(group),
        group.shape.label,
        _mean(group, lambda row: row.accuracy, percent, accuracy),
        difference,
        _time(group, time),
        ABSENT if group.serial else _mean(group, lambda row: row.speedup, ratio, speedup, geometric=True),
        _mean(group, BYTES_SENT_PER_RANK.of, size),
        chance,
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
