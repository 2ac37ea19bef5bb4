"""What a seed adds to all configurations alike, such as an easy split of the data."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

import numpy as np
from scipy.special import fdtrc

from orchestrator.report.statistics.moderated import Sample

MIN_SEEDS = 3  # with fewer, a test for the effect says next to nothing
PAIRING_LEVEL = 0.01  # of this test


def pairing_helps(samples: Sequence[Sample]) -> bool:
    """Whether the seed has an effect that all of these samples share: the F test of two-way analysis of
    variance, in which the seeds are blocks.

    Pairing removes such an effect, and otherwise costs degrees of freedom. The sums of squares of blocks
    and residuals are independent, so that this choice does not bias what is tested with the residuals.
    """
    seeds = set.intersection(*(set(sample) for sample in samples)) if samples else set()
    if len(samples) < 2 or len(seeds) < MIN_SEEDS or any(set(sample) != seeds for sample in samples):
        return False
    table = np.array([[sample[seed] for seed in sorted(seeds)] for sample in samples])
    groups, blocks = table.shape
    of_blocks = table.mean(axis=0)
    residuals = table - table.mean(axis=1, keepdims=True) - of_blocks + table.mean()
    residual = float((residuals**2).sum()) / ((groups - 1) * (blocks - 1))
    between = groups * float(np.var(of_blocks, ddof=1))
    if residual == 0:
        return bool(between > 0)
    p = float(fdtrc(blocks - 1, (groups - 1) * (blocks - 1), between / residual))
    return p < PAIRING_LEVEL


def without_seed_effect(samples: Sequence[Sample]) -> list[Sample]:
    """The samples without what a seed adds to all of them alike, their means as they were.

    All have the same seeds. The variance of what is left is that of a configuration alone, so that the
    variances of two of them add up to that of their difference within a seed.
    """
    of_seed = {seed: fmean(sample[seed] for sample in samples) for seed in samples[0]}
    overall = fmean(of_seed.values())
    # What is left of each value is too small by the share that was its own part of the seed's mean.
    scale = sqrt(len(samples) / (len(samples) - 1))
    freed: list[Sample] = []
    for sample in samples:
        mean = fmean(sample.values())
        left = {seed: value - mean - of_seed[seed] + overall for seed, value in sample.items()}
        freed.append({seed: mean + scale * residual for seed, residual in left.items()})
    return freed
