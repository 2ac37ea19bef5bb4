"""Label skew of any degree, drawn from a Dirichlet distribution."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from trainer.data.base import DataError, Indices, Labels, Partitioner
from trainer.data.labels import assign_by_counts, group_by_label

DRAWS = 100  # attempts to draw a split whose parts all have `min_samples`


class Dirichlet(Partitioner):
    """Skew labels by a Dirichlet distribution (Yurochkin et al. 2019; Hsu et al. 2019; Li et al. 2022).

    Without `equal_sizes`, the rule of Yurochkin et al. 2019 ("Bayesian Nonparametric Federated Learning
    of Neural Networks") and Li et al. 2022 ("Federated Learning on Non-IID Data Silos"): for each class
    the shares of the P nodes are drawn from Dir_P(alpha). A node's share of a class has mean 1/P and
    variance (1/P)(1 - 1/P) / (alpha P + 1). Part sizes differ strongly. A split with a part below
    `min_samples` is drawn again as a whole, at most 100 times, so the distribution is conditional on
    parts of at least `min_samples`. Flower's DirichletPartitioner with self_balancing=False draws shares
    from the same distribution.

    `self_balancing` adds a rule of the code of Yurochkin et al., as Flower's self_balancing=True does:
    classes are assigned one after the other, and a node that has more than samples / P samples gets none of
    the classes that follow. Their shares are drawn from Dir(alpha) of the other nodes, so they no longer
    have the mean and variance above.

    With `equal_sizes`, the rule of Hsu, Qi and Brown 2019 ("Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification"): each node draws its own label distribution from
    Dir(alpha p), with p the label shares of the whole set, and gets samples / P (±1) samples whose labels
    are drawn from it. The probability of a label on a node has mean p and variance p(1 - p) / (alpha + 1).
    Nodes draw in random order. When a label has run out, a node draws its remaining labels instead, so
    the distributions of the last nodes deviate from Dir(alpha p).
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    alpha: float = Field(
        0.5, ge=1e-3, le=1e6, description="concentration: small is skewed, large is the same mix everywhere"
    )
    min_samples: int = Field(1, ge=1, description="least samples of a part")
    equal_sizes: bool = Field(False, description="parts of equal size (Hsu et al. 2019)")
    self_balancing: bool = Field(
        False, description="no further class for a node with more than samples / P samples"
    )

    @property
    def without_effect(self) -> dict[str, str]:
        return {"min_samples": "equal_sizes: true"} if self.equal_sizes else {}

    def validation_error(self, samples: int, classes: int, parts: int) -> str | None:
        if parts <= samples < parts * self.min_samples:
            return (
                f"min_samples {self.min_samples} in each of {parts} parts is more than the {samples} "
                f"samples; it can be at most {samples // parts}"
            )
        if self.equal_sizes and self.self_balancing:
            return "with equal_sizes nodes have equally many samples, so self_balancing must be false"
        return super().validation_error(samples, classes, parts)

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        samples = group_by_label(labels, rng)
        of_class = np.array([len(of_label) for of_label in samples])
        counts = (self.equal_parts if self.equal_sizes else self.unequal_parts)(of_class, parts, rng)
        return assign_by_counts(samples, counts)

    def unequal_parts(self, of_class: Indices, parts: int, rng: np.random.Generator) -> Indices:
        """Samples per class and node, shape (classes, parts), after Yurochkin et al.

        of_class: samples of each class, shape (classes,), at least 1 each.
        """
        for _ in range(DRAWS):
            if self.self_balancing:
                counts = self._balanced(of_class, parts, rng)
            else:
                counts = self._drawn(of_class, parts, rng)
            if counts.sum(axis=0).min() >= self.min_samples:
                return counts
        raise DataError(
            f"dirichlet with alpha {self.alpha:g} gave some of {parts} parts less than {self.min_samples} "
            f"of {of_class.sum()} samples in each of {DRAWS} draws; raise alpha, use fewer nodes"
            f"{', lower min_samples' if self.min_samples > 1 else ''} or set equal_sizes: true"
        )

    def _drawn(self, of_class: Indices, parts: int, rng: np.random.Generator) -> Indices:
        """Divide classes independently of each other."""
        shares = rng.dirichlet(np.full(parts, self.alpha), len(of_class))
        # Round at a random offset for each class: with a common one, all small classes would go to the
        # same nodes. The expected count is share × samples, and every count is within 1 of it.
        ends = np.floor(np.cumsum(shares, axis=1) * of_class[:, None] + rng.random((len(of_class), 1)))
        ends[:, -1] = of_class
        ends = np.minimum(ends, of_class[:, None])
        counts: Indices = np.diff(ends, axis=1, prepend=0).astype(np.int64)
        return counts

    def _balanced(self, of_class: Indices, parts: int, rng: np.random.Generator) -> Indices:
        """Divide each class among the nodes that have at most samples / parts samples so far."""
        counts = np.zeros((len(of_class), parts), np.int64)
        for row in range(len(of_class)):
            # Some shares of a Dirichlet distribution, divided by their sum, are Dirichlet-distributed.
            takes = counts.sum(axis=0) <= of_class.sum() / parts
            counts[row, takes] = self._drawn(of_class[row : row + 1], int(takes.sum()), rng)[0]
        return counts

    def equal_parts(self, of_class: Indices, parts: int, rng: np.random.Generator) -> Indices:
        """Samples per class and node, shape (classes, parts), after Hsu et al.; `of_class` as above."""
        samples, left = of_class.sum(), of_class.copy()
        counts = np.zeros((len(of_class), parts), np.int64)
        for node in rng.permutation(parts):
            size = samples // parts + (node < samples % parts)
            distribution = rng.dirichlet(self.alpha * of_class / samples)
            while wanted := size - counts[:, node].sum():
                weights = distribution * (left > 0)
                if not weights.any():  # none of the node's labels is left: take any that is
                    weights = left.astype(np.float64)
                # Same distribution as drawing one by one and skipping labels that have run out.
                drawn = np.minimum(rng.multinomial(wanted, weights / weights.sum()), left)
                counts[:, node] += drawn
                left -= drawn
        return counts
