"""Chooses the samples of a dataset with which components are tried."""

from __future__ import annotations

import numpy as np

from trainer.data.base import Array, Indices

VECTORS = "vectors"  # a dataset that only components are tried on
TRIED_SAMPLES = 17  # odd, so that the batches of two ranks differ in size
MAX_SAMPLES = 32 * 2**20  # bytes of the inputs and targets of a dataset that are written for other trials
MAX_LABELS = 100_000  # with which a partitioner is tried


def spread(targets: Array, count: int) -> Indices:
    """The indices of samples spread over a whole dataset, in the order of their targets.

    Integer targets of shape (samples,) are classes: each class occurs if there are at most `count` of
    them. Other targets are ordered by their mean. The order of the file has no influence on which classes
    occur, and the first and the last samples differ in class if any samples do.

    Args:
        targets: classes or other targets, shape (samples, …).
        count: how many samples are wanted.

    Returns:
        int64, each index once: `count` of them, or all if there are fewer samples.
    """
    classes = targets.ndim == 1 and targets.dtype.kind in "iu"
    keys = targets if targets.ndim == 1 else targets.reshape(len(targets), -1).mean(axis=1)
    order = np.argsort(keys, kind="stable")
    chosen = even(len(order), count)
    if classes:
        firsts = np.unique(keys[order], return_index=True)[1]
        firsts = firsts[even(len(firsts), count)]
        others = np.setdiff1d(chosen, firsts)
        chosen = np.union1d(firsts, others[even(len(others), len(chosen) - len(firsts))])
    return order[chosen]


def even(of: int, count: int) -> Indices:
    """At most `count` of the positions 0 … of - 1, at equal distance, the first and the last among them."""
    return np.unique(np.linspace(0, of - 1, min(of, count)).round().astype(np.int64))


def taken(of: int, size: int, start: int = 0) -> Indices:
    """The positions of a batch in samples that `spread` chose, at equal distance and then again.

    start: another number gives another batch of the same size.
    """
    return (np.arange(size) * of // size + start) % of
