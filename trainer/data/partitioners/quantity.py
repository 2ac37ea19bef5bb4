"""Unequal amounts: the same label mix everywhere, but much more of it on some nodes."""

from __future__ import annotations

from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainer.data.base import Indices, Labels, Partitioner
from trainer.data.labels import group_by_label


class Quantity(Partitioner):
    """Keep the label mix; let part sizes fall from node to node (Li et al. 2020; Li et al. 2022).

    Each of P nodes has one sample; the others are divided by weight.

    The weight of node i = 0 … P - 1, with s for `imbalance`, which makes all equal where it is 0:

    power        (i + 1)^-s, Zipf's law.
    log_normal   exp(s z), where z is the normal distribution's quantile at 1 - (i + 1/2) / P: s is the
                 standard deviation of the logarithm.
    exponential  exp(-s i / (P - 1)): the first node has e^s times the weight of the last.

    Sizes are the law's own (±1) and not a draw from it, so that seeds differ in the samples alone.
    Labels are spread evenly: with a part's size and the share p of a label among C, a node's count of
    it is size × p to within 2(1 + p C) samples.

    "Quantity skew" is of Li et al. 2022 ("Federated Learning on Non-IID Data Silos"), who draw sizes
    from a Dirichlet distribution. Power law and log-normal sizes are usual since Li et al. 2020
    ("Federated Optimization in Heterogeneous Networks"), in text and code.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    law: Literal["power", "log_normal", "exponential"] = Field("power", description="how sizes fall")
    imbalance: float = Field(1.0, ge=0, le=10, description="how steeply; 0 is equal sizes")

    def split(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        samples = group_by_label(labels, rng)
        # Places 0 … 1, at equal distances within a label: any stretch of them has the mix of the whole.
        places = [(np.arange(len(of_label)) + rng.random()) / len(of_label) for of_label in samples]
        order = np.concatenate(samples)[np.argsort(np.concatenate(places))]
        return np.split(order, np.cumsum(self.sizes(len(labels), parts))[:-1])

    def sizes(self, samples: int, parts: int) -> Indices:
        """Samples of each node, shape (parts,), at least 1 each."""
        weights = self.weights(parts)
        ends = np.rint(np.cumsum(weights) / weights.sum() * (samples - parts)).astype(np.int64)
        sizes: Indices = 1 + np.diff(ends, prepend=0)
        return sizes

    def weights(self, parts: int) -> npt.NDArray[np.float64]:
        """Of the law, shape (parts,), to any scale."""
        node = np.arange(parts, dtype=np.float64)
        match self.law:
            case "power":
                falling = (node + 1) ** -self.imbalance
            case "log_normal":
                quantile = NormalDist().inv_cdf
                falling = np.exp(self.imbalance * np.array([quantile(1 - (i + 0.5) / parts) for i in node]))
            case "exponential":
                falling = np.exp(-self.imbalance * node / max(1, parts - 1))
        return falling
