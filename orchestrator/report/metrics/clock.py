"""How far cluster time is from wall time, or that of virtual nodes from that of real ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from orchestrator.replay.described import fits_cores, has_cores
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import groups_of
from orchestrator.report.model.rows import Row, quotient
from orchestrator.report.quantities.times import wall_by_cluster

MAX_ERROR = 0.15  # of cluster time, beyond which a report says so
LEAST_CALIBRATING = 0.5  # of the runs with as many cores as ranks; fewer are exceptions beside other load


@dataclass(frozen=True)
class ClockError:
    """The error of cluster time in runs whose ranks had a core each, where both times mean the same.

    Cluster time takes the CPU time of work as measured, so the error is that of everything else: exchanges,
    waiting, and time that no record covers. What exchanges cost is learned from other runs than the one
    whose time is predicted. Cluster times of virtual nodes compare with the times of real ones.

    rows: these runs. median, worst: the median and the largest |cluster time / wall time − 1|.
    of_configuration: the largest median over the seeds of a configuration.
    """

    rows: tuple[Row, ...]
    median: float
    worst: float
    of_configuration: float


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
