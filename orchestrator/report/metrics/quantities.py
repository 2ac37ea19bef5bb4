"""Quantities that findings compare, each with its scale and its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean

from orchestrator.report.formats import percent, points, points_bound, ratio, seconds
from orchestrator.report.metrics.communication import exchange_s_per_step
from orchestrator.report.metrics.intervals import interval_of_accuracy
from orchestrator.report.metrics.learning import time_to_target_s
from orchestrator.report.metrics.model_partition import step_s
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.report.statistics.moderated import Sample

MOST_WRITTEN = 1000  # the ratio beyond which a bound says nothing more
MOST_LOG = 700.0  # of a float


@dataclass(frozen=True)
class Quantity:
    """What a comparison compares.

    Attributes:
        name: of the quantity, as in findings.json.
        of: its value in a run.
        write: formats a value.
        ratio: whether values compare by their ratio and average geometrically, as times do; otherwise by
            their difference.
        lower_is_better: as for a time.
        resolution: the distance of neighbouring values in a run, if they are discrete.
        within: the smallest and the largest difference from a reference that are possible.
        timed: whether it is read from a clock, whose error no interval contains.
    """

    name: str
    of: Metric
    write: Callable[[float], str]
    ratio: bool = True
    lower_is_better: bool = True
    resolution: Callable[[Row], float] = lambda row: 0.0
    within: Callable[[Group], tuple[float, float]] = lambda reference: (-inf, inf)
    timed: bool = False

    def sample(self, group: Group) -> Sample:
        """The values of the group's ok runs by seed, on the scale of the comparison."""
        known = {row.seed: value for row in group.ok_rows if (value := self.of(row)) is not None}
        if not self.ratio:
            return known
        return {seed: log(value) for seed, value in known.items() if value > 0}

    def mean(self, sample: Sample) -> float:
        """The mean of a sample, in the unit of the quantity."""
        return self.unscaled(fmean(sample.values()))

    def mean_of(self, group: Group) -> float:
        """The mean over the group's ok runs; it must have a value in one."""
        return self.mean(self.sample(group))

    def unscaled(self, value: float) -> float:
        """From the scale of the comparison to a ratio or a difference."""
        return exp(max(-MOST_LOG, min(value, MOST_LOG))) if self.ratio else value

    def possible(self, bound: float, reference: Group) -> float:
        """A bound of the difference from a reference, on the comparison's scale, if it is possible."""
        least, most = self.within(reference)
        return max(least, min(bound, most))

    def write_difference(self, left: float, right: float) -> str:
        """`+0.6 points`, `1.24 times as long`: of two means."""
        return f"{ratio(left / right)} times as long" if self.ratio else points(left - right)

    def write_bound(self, value: float) -> str:
        """A bound of the interval of a difference, from the scale of the comparison, without its unit."""
        if not self.ratio:
            return points_bound(value)
        if abs(value) > log(MOST_WRITTEN):
            return f"over {MOST_WRITTEN}" if value > 0 else f"under 1/{MOST_WRITTEN}"
        return ratio(exp(value))


def _one_image(row: Row) -> float:
    images = row.test_samples
    return 1 / images if images else 0.0


def _within_accuracies(reference: Group) -> tuple[float, float]:
    """Differences that lead to an accuracy of 0 … 1, from anywhere in the interval of the reference."""
    low, high = interval_of_accuracy(reference) or (0.0, 1.0)
    return -high, 1 - low


ACCURACY = Quantity(
    "accuracy",
    lambda row: row.accuracy,
    percent,
    ratio=False,
    lower_is_better=False,
    resolution=_one_image,
    within=_within_accuracies,
)
AVERAGING_GAIN = Quantity(
    "averaging_gain",
    lambda row: row.averaging_gain,
    points,
    ratio=False,
    lower_is_better=False,
    resolution=_one_image,
    within=lambda reference: (-1, 1),
)
TRAIN_S = Quantity("train_s", lambda row: row.train_s, seconds, timed=True)
ELAPSED_S = Quantity("elapsed_s", lambda row: row.elapsed_s, seconds, timed=True)
STEP_S = Quantity("step_s", step_s, seconds, timed=True)
EXCHANGE_S_PER_STEP = Quantity("exchange_s_per_step", exchange_s_per_step, seconds, timed=True)
TIME_TO_TARGET_S = Quantity("time_to_target_s", time_to_target_s, seconds, timed=True)
