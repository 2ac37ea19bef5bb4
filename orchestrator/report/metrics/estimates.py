"""The errors of means: of cluster time against wall time, between sessions, and over the seeds that ran."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from statistics import fmean, median

from orchestrator.replay.described import fits_cores, has_cores
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.groups import Group, groups_of
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Row, quotient
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.quantities.times import wall_by_cluster
from orchestrator.report.statistics.common_seeds import SeedFit
from orchestrator.report.statistics.moderated import Estimate, Sample, moderated

MAX_ERROR = 0.15  # of cluster time, beyond which a report says so
LEAST_CALIBRATING = 0.5  # of the runs with as many cores as ranks; fewer are exceptions beside other load
# By how much the time of a configuration differs if a sweep is repeated minutes later on a quiet machine:
# the standard deviation of its logarithm. Measured with tests/bench/sessions.py of commit d1f43bb7.
BETWEEN_SESSIONS = 0.027
LEAST_SEEDS = 2  # of an estimate


@dataclass(frozen=True)
class ClockError:
    """The error of cluster time in runs whose ranks had a core each, where both times mean the same.

    Cluster time takes the CPU time of work as measured, so the error is that of everything else: exchanges,
    waiting, and time that no record covers. What exchanges cost is learned from other runs than the one
    whose time is predicted. Cluster times of virtual nodes compare with the times of real ones.
    """

    rows: tuple[Row, ...]  # these runs
    median: float  # of |cluster time / wall time − 1|
    worst: float  # the largest
    of_configuration: float  # the largest median over the seeds of a configuration


def _true_by_cluster(row: Row) -> float | None:
    """What cluster time should be / cluster time; None without either."""
    return quotient(row.real.seconds, row.real.predicted_s) if row.real else wall_by_cluster(row)


def clock_error(rows: Iterable[Row]) -> ClockError | None:
    """The error over the runs that calibrate cluster time; None if there are none or few."""
    able = [row for row in rows if row.cluster and (row.real or fits_cores(row.wall_result))]
    calibrating = [row for row in able if row.real or calibrates(row)]
    if len(calibrating) < LEAST_CALIBRATING * len(able):
        return None
    errors = [
        [abs(1 / ratio - 1) for row in group.rows if (ratio := _true_by_cluster(row))]
        for group in groups_of(calibrating)
    ]
    runs = [error for of_group in errors for error in of_group]
    if not runs:
        return None
    return ClockError(tuple(calibrating), median(runs), max(runs), max(map(median, errors)))


def error_of_difference(view: WorkloadView) -> float:
    """The relative error of a difference of times, which seeds do not make smaller.

    Runs of a configuration have the error of their cluster times in common, so that their spread does not
    show it.
    """
    if view.clock == "wall":
        return 0.0
    rows = [row for group in view.groups for row in group.ok_rows]
    if (error := clock_error(rows)) is None:
        return MAX_ERROR
    # Real nodes show the error on few nodes. On more it may be larger.
    return max(error.of_configuration, MAX_ERROR if any(row.is_virtual for row in rows) else 0.0)


def calibrates(row: Row) -> bool:
    """Whether a run's wall time is what its cluster time should be: several ranks, each with a core.

    The wall time over links that were not enforced is that of other links.
    """
    wall = row.wall
    return (
        wall_by_cluster(row) is not None
        and wall.timed
        and has_cores(wall.result)
        and not wall.link_not_enforced
    )


def clock_errors(comparison: Comparison) -> dict[Workload, float]:
    """The relative error of a difference of cluster times, by workload.

    Runs on one node are compared over each link, and so have the largest error over all of them.
    """
    errors: dict[Workload, float] = {}
    for view in map(comparison.view, comparison.workloads):
        error = error_of_difference(view)
        for workload in (view.workload, view.workload.without_links):
            errors[workload] = max(error, errors.get(workload, 0.0))
    return errors


def estimates(
    quantity: Quantity, groups: Sequence[Group], errors: Mapping[Workload, float]
) -> list[Estimate]:
    """The means over seeds of configurations that share their variance, on the quantity's scale.

    Their differences are more certain than the spread over seeds suggests if a seed adds the same to all:
    such an effect is left out. It is that on these configurations if they have the same seeds, and
    otherwise, if seeds determine the quantity, that on all that it was fitted to.

    Args:
        groups: each with at least LEAST_SEEDS values.
        errors: the relative error of a difference of cluster times, by workload. It is in the error of the
            means of times, as are the differences between sessions: neither becomes smaller with seeds.
    """
    samples = [quantity.sample(group) for group in groups]
    alone = SeedFit(dict(enumerate(samples)))
    fits = [(alone, at) if alone.balanced else quantity.fit(group) for at, group in enumerate(groups)]
    freed = [_without_seeds(*each) for each in zip(samples, fits, strict=True)]
    resolution = max(quantity.resolution(row) for group in groups for row in group.ok_rows)
    found = moderated([sample for sample, _ in freed], resolution, [own_dof for _, own_dof in freed])
    found = [
        replace(each, shifted={id(fit[0]): fit[0].shift_errors(fit[1])} if fit else {})
        for each, fit in zip(found, fits, strict=True)
    ]
    if not quantity.timed:
        return found
    return [_between(each, group, errors) for each, group in zip(found, groups, strict=True)]


def _without_seeds(sample: Sample, fit: tuple[SeedFit, Hashable] | None) -> tuple[Sample, float]:
    """A sample without what seeds add to all, if they do, and its degrees of freedom per further seed."""
    if fit is None or not fit[0].pairing_helps:
        return sample, 1.0
    left, own_dof = fit[0].residuals(fit[1])
    mean = fmean(sample.values())
    return {seed: mean + each for seed, each in left.items()}, own_dof


def _between(estimate: Estimate, group: Group, errors: Mapping[Workload, float]) -> Estimate:
    error = errors.get(group.workload, 0.0) if group.first.clock == "cluster" else 0.0
    return replace(estimate, between=hypot(BETWEEN_SESSIONS, error / sqrt(2)) ** 2)
