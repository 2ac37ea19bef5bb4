"""Drift: how much a machine's speed changed while a sweep ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from orchestrator.report.statistics.spread import MIN_SEEDS, t_quantile

WIDE = 1.5  # high / low bound


@dataclass(frozen=True)
class Drift:
    """The factor between wall times at the end and at the start of a sweep, with its 95 % interval.

    span_s: from the start of the first run to that of the last.
    """

    factor: float
    low: float
    high: float
    span_s: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes that there is none."""
        return not self.low <= 1 <= self.high

    @property
    def wide(self) -> bool:
        """Whether the interval cannot exclude a drift that matters."""
        return self.high > WIDE * self.low


def time_drift(runs: Sequence[tuple[float, str, float]]) -> Drift | None:
    """The linear trend of log wall times over the time of the sweep, within configurations.

    Args:
        runs: started_at, the configuration and the wall time of each run, times in seconds.

    Returns:
        None without MIN_SEEDS runs of a configuration, or if all runs started at once.
    """
    by_configuration: dict[str, list[tuple[float, float]]] = {}
    for started_at, configuration, seconds in runs:
        by_configuration.setdefault(configuration, []).append((started_at, log(seconds)))
    groups = [np.array(group) for group in by_configuration.values() if len(group) >= MIN_SEEDS]
    if not groups:
        return None
    # Subtracting each configuration's means leaves what time explains within configurations.
    within = np.concatenate([group - group.mean(axis=0) for group in groups])
    at, logs = within[:, 0], within[:, 1]
    span = max(group[:, 0].max() for group in groups) - min(group[:, 0].min() for group in groups)
    squares, dof = float(at @ at), len(within) - len(groups) - 1
    if squares == 0 or dof < 1:
        return None
    slope = float(at @ logs) / squares
    residuals = logs - slope * at
    error = sqrt(float(residuals @ residuals) / dof / squares)
    half = t_quantile(dof) * error
    return Drift(exp(slope * span), exp((slope - half) * span), exp((slope + half) * span), span)
