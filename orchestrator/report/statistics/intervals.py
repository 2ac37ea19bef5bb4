"""The 95 % interval of one configuration."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt

import numpy as np
from scipy.special import ndtri, stdtrit

LEVEL = 0.95
MIN_SEEDS = 3  # with fewer, an interval is too wide to say anything


def t_quantile(dof: int) -> float:
    """Half the width of a 95 % interval in standard errors, by Student's t.

    From scipy.special, since scipy.stats is slow to load.
    """
    return float(stdtrit(dof, (1 + LEVEL) / 2))


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's interval of a probability."""
    z = float(ndtri((1 + LEVEL) / 2))
    centre = (successes + z**2 / 2) / (trials + z**2)
    half = z * sqrt(successes * (trials - successes) / trials + z**2 / 4) / (trials + z**2)
    low = 0.0 if successes == 0 else centre - half
    return low, 1.0 if successes == trials else centre + half


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
    of_seeds = float(t_quantile(len(values) - 1) * np.std(values, ddof=1)) / sqrt(len(values))
    below = above = 0.0
    if images:
        low, high = _wilson(round(mean * images), images)
        below, above = mean - low, high - mean
    return max(0.0, mean - sqrt(of_seeds**2 + below**2)), min(1.0, mean + sqrt(of_seeds**2 + above**2))


def geometric_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a geometric mean with new seeds, by Student's t of the logarithms.

    values: > 0, one per seed. None for fewer than MIN_SEEDS.
    """
    if len(values) < MIN_SEEDS:
        return None
    logs = [log(value) for value in values]
    half = t_quantile(len(logs) - 1) * float(np.std(logs, ddof=1)) / sqrt(len(logs))
    middle = float(np.mean(logs))
    return exp(middle - half), exp(middle + half)
