"""The 95 % intervals of times and speedups: one definition for tables, files and the verdict."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.report.findings.decide import ZERO, Claims
from orchestrator.report.metrics.estimates import estimates
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.statistics.contrasts import MIN_SEEDS, Contrast, critical_t
from orchestrator.report.statistics.intervals import MIN_SEEDS as LEAST_SEEDS

LEVEL = 0.05


def speedup_interval(claims: Claims, serial: Group | None, group: Group) -> Bounds | None:
    """The interval of the comparison of a configuration's time with serial's.

    It is the one at which a finding decided the comparison. If no finding makes it, the interval has the
    same errors and no correction for other comparisons.

    Returns:
        None without a speedup, or with too few seeds on a side.
    """
    if serial is None or group.serial or Q.speedup.over(group) is None:
        return None
    if found := claims.between(Q.train_s, serial, group):
        return found.interval
    pair = [serial, group]
    if min(len(Q.train_s.sample(each)) for each in pair) < MIN_SEEDS:
        return None
    return _interval(Q.train_s, Contrast(*estimates(Q.train_s, pair, claims.errors)))


def time_interval(quantity: Quantity, group: Group, claims: Claims) -> Bounds | None:
    """The interval of the mean of a configuration's times, with the errors that a speedup has.

    Returns:
        None with too few seeds.
    """
    if len(quantity.sample(group)) < LEAST_SEEDS:
        return None
    (found,) = estimates(quantity, [group], claims.errors)
    return _interval(quantity, Contrast(found, ZERO))


def _interval(quantity: Quantity, contrast: Contrast) -> Bounds:
    """At LEVEL, without a correction for other comparisons."""
    half = critical_t(LEVEL, contrast.dof) * contrast.standard_error
    return quantity.unscaled(contrast.estimate - half), quantity.unscaled(contrast.estimate + half)


def speedup_intervals(comparison: Comparison, claims: Claims) -> Callable[[Group], Bounds | None]:
    """The interval of each configuration of a sweep."""
    serial = {group.workload: group for group in reversed(comparison.groups) if group.serial and group.ok}
    return lambda group: speedup_interval(claims, serial.get(group.workload.without_links), group)
