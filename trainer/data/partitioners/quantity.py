"""Quantity skew: all nodes have the same label mix, but different numbers of samples."""

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

    Each of P nodes gets one sample. The others are divided in proportion to the weights of the nodes.
    With s = `imbalance`, where 0 makes all weights equal, node i = 0 … P - 1 has the weight

    power        (i + 1)^-s, Zipf's law.
    log_normal   exp(s z), where z is the quantile of the normal distribution at 1 - (i + 1/2) / P, so s
                 is the standard deviation of the logarithm.
    exponential  exp(-s i / (P - 1)), so the first node has e^s times the weight of the last.

    Sizes follow the law exactly (±1) and are not drawn from it, so seeds change only the samples. Labels
    are spread evenly: for a label with share p of the set, one of C labels, a part of n samples has n p
    samples of that label, to within 2(1 + p C).

    Li et al. 2022 ("Federated Learning on Non-IID Data Silos") define quantity skew and draw sizes from a
    Dirichlet distribution. Power-law and log-normal sizes are common since Li et al. 2020 ("Federated
    Optimization in Heterogeneous Networks", text and code).
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    random_parts: ClassVar[bool] = True

    law: Literal["power", "log_normal", "exponential"] = Field("power", description="how sizes fall")
    imbalance: float = Field(1.0, ge=0, le=10, description="how steeply; 0 is equal sizes")

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        samples = group_by_label(labels, rng)
        # Positions 0 … 1, equally spaced within each label: any interval has the label mix of the set.
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
        """Weights of the nodes by the law, shape (parts,), up to a common factor."""
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
