"""Shared by the statistical tests of partitioners: labels, counts and the tolerance of estimates.

Seeds are fixed. An estimate may deviate by four standard errors, which each test derives from the
distribution; by chance one estimate in 16 000 would exceed that.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.base import Indices, Labels

Floats = npt.NDArray[np.float64]

ERRORS = 4  # standard errors
TIMES = 1000  # number of splits drawn


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(samples: int, classes: int = 10) -> Labels:
    """Labels of uneven frequency: class k has about (2k + 1) / classes² of the samples."""
    return np.sqrt(np.random.default_rng(9).integers(0, classes**2, samples)).astype(np.int64)


def counts(labels: Labels, parts: list[Indices]) -> Indices:
    """Samples of each label on each node, shape (parts, classes)."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_mean_and_variance(values: Floats, mean: float, variance: float, fourth: float) -> None:
    """Check independent values. fourth: fourth central moment, for the standard error of the variance."""
    assert values.mean() == pytest.approx(mean, abs=ERRORS * sqrt(variance / len(values)))
    error = sqrt((fourth - variance**2) / len(values))
    assert ((values - mean) ** 2).mean() == pytest.approx(variance, abs=ERRORS * error)
