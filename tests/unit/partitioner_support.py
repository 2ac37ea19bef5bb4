"""What tests of partitioners' laws share: labels, counts, and how far an estimate may be off.

Draws have fixed seeds. What is estimated may be off by four standard errors, which are derived from the
law beside each test; by chance alone one estimate in 16 000 would be.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.base import Indices, Labels

Floats = npt.NDArray[np.float64]

ERRORS = 4  # standard errors
TIMES = 1000  # that a split is drawn


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(samples: int, classes: int = 10) -> Labels:
    """Labels of uneven frequency: class k has about (2k + 1) / classes² of the samples."""
    return np.sqrt(np.random.default_rng(9).integers(0, classes**2, samples)).astype(np.int64)


def counts(labels: Labels, parts: list[Indices]) -> Indices:
    """Samples of each label on each node, shape (parts, classes)."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_mean_and_variance(values: Floats, mean: float, variance: float, fourth: float) -> None:
    """Of independent values. fourth: central moment of the law, which says how well a variance is known."""
    assert values.mean() == pytest.approx(mean, abs=ERRORS * sqrt(variance / len(values)))
    error = sqrt((fourth - variance**2) / len(values))
    assert ((values - mean) ** 2).mean() == pytest.approx(variance, abs=ERRORS * error)
