"""How far cluster time is from wall time, and the error that this shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from orchestrator.replay.described import has_cores
from orchestrator.report.model.rows import Row, quotient

MAX_ERROR = 0.15  # of cluster time, beyond which a report says so


@dataclass(frozen=True)
class ClockError:
    """The error of cluster time in runs whose ranks had a core each, where both times mean the same.

    Cluster time takes the CPU time of work as measured, so the error is that of everything else: exchanges,
    waiting, and time that no record covers. What exchanges cost is learned from other runs than the one
    whose time is predicted.

    rows: these runs. median, worst: of |cluster time / wall time − 1|.
    """

    rows: tuple[Row, ...]
    median: float
    worst: float


def wall_by_cluster(row: Row) -> float | None:
    """Wall time / cluster time; None without a cluster time."""
    return quotient(row.wall.train_s, row.cluster.train_s) if row.cluster else None


def clock_error(rows: Iterable[Row]) -> ClockError | None:
    """The error over the runs that calibrate cluster time; None if there are none."""
    calibrating = [row for row in rows if calibrates(row)]
    errors = [abs(1 / ratio - 1) for row in calibrating if (ratio := wall_by_cluster(row))]
    return ClockError(tuple(calibrating), median(errors), max(errors)) if errors else None


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
