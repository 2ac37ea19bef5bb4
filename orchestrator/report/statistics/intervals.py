"""The interval of an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy import stats

from orchestrator.report.statistics.contrasts import MIN_SEEDS

LEVEL = 0.95


def accuracy_interval(values: Sequence[float], images: int | None) -> tuple[float, float] | None:
    """The 95 % interval of an accuracy on new images and with new seeds.

    Its error has two parts: that of the mean over seeds (Student's t), and that of the test set, which is
    one draw of `images` images (binomial; Wilson's interval). Their half widths add as squares.

    Args:
        values: accuracies, one per seed.
        images: size of the test set; None leaves its error out.

    Returns:
        Bounds within 0 … 1; None for fewer than MIN_SEEDS values.

    Source:
        Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.
    """
    if len(values) < MIN_SEEDS:
        return None
    mean = float(np.mean(values))
    of_seeds = float(stats.t.isf((1 - LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1)) / sqrt(
        len(values)
    )
    below = above = 0.0
    if images:
        wilson = stats.binomtest(round(mean * images), images).proportion_ci(LEVEL, method="wilson")
        below, above = mean - float(wilson.low), float(wilson.high) - mean
    return max(0.0, mean - sqrt(of_seeds**2 + below**2)), min(1.0, mean + sqrt(of_seeds**2 + above**2))
