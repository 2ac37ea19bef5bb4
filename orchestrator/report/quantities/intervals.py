"""95 % intervals of a configuration's accuracy, time and speedup, from its rows."""

from __future__ import annotations

from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.intervals import accuracy_interval, ratio_interval


def interval_of_accuracy(group: Group) -> tuple[float, float] | None:
    """On new images and with new seeds; None with too few seeds or different test sets."""
    values = [row.accuracy for row in group.ok_rows if row.accuracy is not None]
    images = {row.test_samples for row in group.ok_rows}
    return accuracy_interval(values, images.pop()) if len(images) == 1 and None not in images else None


def interval_of_time(group: Group) -> tuple[float, float] | None:
    """Of the geometric mean; None with too few seeds."""
    return ratio_interval([row.train_s for row in group.ok_rows if row.train_s])


def interval_of_speedup(group: Group) -> tuple[float, float] | None:
    """None if the runs of several seeds were compared with the same serial runs, whose error they share."""
    compared = [row for row in group.ok_rows if row.speedup is not None]
    own = all(row.baseline and row.baseline.same_seed for row in compared)
    known = [row.speedup for row in compared if row.speedup is not None]
    return ratio_interval(known) if own and not group.serial else None
