"""Groups samples by label and assigns them by counts, for partitioners that control labels."""

from __future__ import annotations

import numpy as np

from trainer.data.base import Indices, Labels


def group_by_label(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """Return the samples of each label that occurs, in ascending order of labels, shuffled within each.

    labels: int64, shape (samples,), at least one.
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    return np.split(order, np.cumsum(counts[counts > 0])[:-1])


def assign_by_counts(samples: list[Indices], counts: Indices) -> list[Indices]:
    """Return the samples of each node: the next counts[c, node] samples of samples[c], for every c.

    counts: int64, shape (len(samples), nodes). Row c sums to len(samples[c]).
    """
    nodes = np.tile(np.arange(counts.shape[1]), len(samples))
    order = np.argsort(np.repeat(nodes, counts.ravel()), kind="stable")
    return np.split(np.concatenate(samples)[order], np.cumsum(counts.sum(axis=0))[:-1])
