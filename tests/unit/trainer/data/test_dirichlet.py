"""Both Dirichlet partitioners follow their distributions, and min_samples is met or an error."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from tests.unit.partitioner_support import (
    ERRORS,
    TIMES,
    Floats,
    assert_mean_and_variance,
    counts,
    labels_of,
    rng,
)
from trainer.data.base import DataError
from trainer.data.partitioners.dirichlet import DRAWS, Dirichlet


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_dirichlet_shares_of_a_class_follow_the_distribution(alpha: float) -> None:
    classes, per_class, parts = 5, 400, 4
    labels = np.arange(classes * per_class) % classes
    partitioner, seed = Dirichlet(alpha=alpha), rng(3)
    found = np.stack([counts(labels, partitioner.partition(labels, parts, seed)) for _ in range(TIMES)])
    # A share is Beta(a, b), except that both ends are rounded by less than one sample: the
    # variance of the rounding is below (1 / 400)², 1/200 of the smallest standard error here.
    a, b = alpha, alpha * (parts - 1)
    variance = a * b / ((a + b) ** 2 * (a + b + 1))
    assert variance == pytest.approx((1 / parts) * (1 - 1 / parts) / (alpha * parts + 1))
    excess = 6 * ((a - b) ** 2 * (a + b + 1) - a * b * (a + b + 2)) / (a * b * (a + b + 2) * (a + b + 3))
    for node in range(parts):
        shares = found[:, node].ravel() / per_class  # classes are independent of each other
        assert_mean_and_variance(shares, 1 / parts, variance, fourth=(3 + excess) * variance**2)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_of_equal_sizes_fills_nodes_from_their_own_distribution(alpha: float) -> None:
    of_class, parts = np.array([500, 300, 200]), 20
    partitioner, size = Dirichlet(alpha=alpha, equal_sizes=True), 50
    # The first node to draw: no class can run out for it.
    found = np.stack(
        [
            partitioner.equal_parts(of_class, parts, rng(seed))[:, rng(seed).permutation(parts)[0]]
            for seed in range(TIMES)
        ]
    )
    assert (found.sum(axis=1) == size).all()
    for row, p in enumerate(of_class / of_class.sum()):
        share = found[:, row] / size
        # A count is Dirichlet-multinomial: variance of the distribution plus that of 50 draws from it.
        of_distribution = p * (1 - p) / (alpha + 1)
        variance = of_distribution + (p * (1 - p) - of_distribution) / size
        assert_mean_and_variance(share, p, variance, fourth=float(((share - p) ** 4).mean()))


def test_dirichlet_of_equal_sizes_has_parts_that_differ_by_at_most_one_sample() -> None:
    for alpha in (1e-3, 0.5, 1e6):
        for parts in (1, 7, 64):
            split = Dirichlet(alpha=alpha, equal_sizes=True).partition(labels_of(1437), parts, rng())
            assert {len(part) for part in split} <= {1437 // parts, 1437 // parts + 1}


def test_dirichlet_of_equal_sizes_fills_nodes_in_random_order() -> None:
    # With almost no mixing, the last node takes the remaining samples; the first chooses freely.
    of_class, seed = np.array([30, 30]), rng(4)
    partitioner = Dirichlet(alpha=1e-3, equal_sizes=True)
    mixed = np.array([(partitioner.equal_parts(of_class, 3, seed) > 0).all(axis=0) for _ in range(TIMES)])
    # Three nodes of 20 from two classes of 30. Where the first two choose the same class (probability
    # ½), the second gets 10 of each; otherwise the third does.
    assert mixed.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=ERRORS * sqrt(2 / 9 / TIMES))


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_dirichlet_skew_falls_with_alpha(equal_sizes: bool) -> None:
    labels = labels_of(1437)
    largest = []
    for alpha in (0.05, 0.5, 5, 500):
        found = counts(labels, Dirichlet(alpha=alpha, equal_sizes=equal_sizes).partition(labels, 5, rng(5)))
        largest.append((found.max(axis=1) / found.sum(axis=1)).mean())
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.5
    assert largest[-1] == pytest.approx(0.19, abs=0.03)  # the share of the most frequent class


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0])
def test_self_balancing_gives_full_nodes_no_further_class(alpha: float) -> None:
    labels, parts = labels_of(1437), 5
    full = 0
    for seed in range(100):
        partitioner = Dirichlet(alpha=alpha, self_balancing=True)
        try:
            found = counts(labels, partitioner.partition(labels, parts, rng(seed)))
        except DataError:  # a part stays empty
            assert alpha == 1e-3
            continue
        before = np.cumsum(found, axis=1) - found  # samples of each node before it gets a class
        assert not found[before > len(labels) / parts].any()
        full += int((before > len(labels) / parts).sum())
    assert full


def test_self_balancing_changes_the_sizes_and_not_the_shares_of_the_first_class() -> None:
    labels, seed, parts = np.arange(2000) % 5, rng(3), 4
    plain, balanced = (
        np.stack([counts(labels, form.partition(labels, parts, seed)) for _ in range(TIMES)])
        for form in (Dirichlet(alpha=1.0, self_balancing=each) for each in (False, True))
    )
    variance = 3 / 4**2 / 5  # of a Beta(1, 3)
    assert_mean_and_variance(balanced[:, 0, 0] / 400, 1 / 4, variance, fourth=(3 + 2 / 3) * variance**2)
    assert balanced.sum(axis=2).max() < plain.sum(axis=2).max()
    assert balanced.sum(axis=2).std() < 0.8 * plain.sum(axis=2).std()


def test_equal_sizes_excludes_self_balancing() -> None:
    reason = Dirichlet(equal_sizes=True, self_balancing=True).validation_error(1437, 10, 4)
    assert reason
    assert "self_balancing must be false" in reason


def test_dirichlet_spreads_small_classes_over_all_nodes() -> None:
    classes, per_class, parts = 200, 6, 60
    labels = np.arange(classes * per_class) % classes
    sizes = np.array([len(part) for part in Dirichlet(alpha=1e6).partition(labels, parts, rng())])
    share = per_class / parts  # a node has at most one sample of a class
    expected, deviation = classes * share, sqrt(classes * share * (1 - share))
    assert abs(sizes - expected).max() < ERRORS * deviation


def test_dirichlet_parts_have_min_samples() -> None:
    labels = labels_of(1437)
    least = {
        min_samples: [
            min(map(len, Dirichlet(alpha=0.3, min_samples=min_samples).partition(labels, 10, rng(seed))))
            for seed in range(100)
        ]
        for min_samples in (1, 30)
    }
    assert min(least[1]) < 30 <= min(least[30])


class AllOnFirstNode(np.random.Generator):
    """Assigns every class to the first node."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.draws = 0

    def dirichlet(self, alpha: Floats, size: int) -> Floats:  # type: ignore[override]
        self.draws += 1
        return np.tile(np.eye(len(alpha))[0], (size, 1))


def test_dirichlet_error_after_the_last_draw_names_remedies() -> None:
    draws = AllOnFirstNode()
    with pytest.raises(
        DataError, match=r"alpha 0\.2 .* less than 1 of 1437 .* raise alpha, use fewer nodes"
    ):
        Dirichlet(alpha=0.2).partition(labels_of(1437), 3, draws)
    assert draws.draws == DRAWS
