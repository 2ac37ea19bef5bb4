"""Mistakes in partitioners: sizes and their rounding, shares of labels, what is drawn, and what is refused.

The laws of conformance say that parts are valid. Here each follows the distribution of its docstring. Seeds
are fixed. An estimate may deviate by ERRORS standard errors, which follow from the distribution.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, cos, exp, sin, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.base import DataError, Indices, Labels
from trainer.data.partitioners.classes import Classes
from trainer.data.partitioners.dirichlet import DRAWS, Dirichlet
from trainer.data.partitioners.feature import Feature
from trainer.data.partitioners.quantity import Quantity
from trainer.data.partitioners.random_sampling import RandomSampling
from trainer.data.partitioners.shards import Shards
from trainer.spec.registries import PARTITIONERS

Floats = npt.NDArray[np.float64]

ERRORS = 4.5
TIMES = 400  # splits drawn
SIZES = [(1437, 5), (10, 3), (7, 7), (1000, 64)]  # samples and parts


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(samples: int) -> Labels:
    """Labels of uneven frequency: class k of 10 has about (2k + 1) % of the samples."""
    return np.sqrt(rng(9).integers(0, 100, samples)).astype(np.int64)


def split(form: Any, labels: Labels, parts: int, seed: int = 0) -> list[Indices]:
    return PARTITIONERS.parse(form).partition(labels, parts, rng(seed))


def counts(labels: Labels, parts: list[Indices]) -> Indices:
    """Samples of each label on each node, shape (parts, classes)."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_mean_and_variance(values: Floats, mean: float, variance: float) -> None:
    """Check independent values by the standard errors of both estimates."""
    assert values.mean() == pytest.approx(mean, abs=ERRORS * sqrt(variance / len(values)))
    squares = (values - mean) ** 2
    assert squares.mean() == pytest.approx(variance, abs=ERRORS * squares.std() / sqrt(len(values)))


# Sizes


@pytest.mark.parametrize(
    "form",
    [
        *("random_partition", "feature", "stratified", "contiguous", "reseeded_stride"),
        *({"name": "dirichlet", "alpha": alpha, "equal_sizes": True} for alpha in (1e-3, 1e6)),
    ],
    ids=str,
)
def test_part_sizes_differ_by_at_most_one_and_the_first_parts_are_larger(form: Any) -> None:
    for samples, parts in SIZES:
        expected = [samples // parts + (node < samples % parts) for node in range(parts)]
        assert [*map(len, split(form, labels_of(samples), parts))] == expected


@pytest.mark.parametrize("form", ["random_sampling", "prefix_shuffle"])
def test_shares_that_are_no_whole_number_are_rounded_up(form: str) -> None:
    for samples, parts in SIZES:
        for part in split(form, labels_of(samples), parts):
            assert len(np.unique(part)) == len(part) == ceil(samples / parts)


@pytest.mark.parametrize("law", ["power", "log_normal", "exponential"])
def test_quantities_follow_their_law_with_rounded_bounds(law: str) -> None:
    for imbalance, parts in ((0.0, 7), (0.5, 2), (1.0, 5), (3.0, 64)):
        partitioner = Quantity.model_validate({"law": law, "imbalance": imbalance})
        if law == "log_normal":  # the quantiles of the middles of equal shares
            weights = [
                exp(imbalance * NormalDist().inv_cdf((parts - node - 0.5) / parts)) for node in range(parts)
            ]
        elif law == "power":
            weights = [1 / (node + 1) ** imbalance for node in range(parts)]
        else:
            weights = [exp(-imbalance * node / (parts - 1)) for node in range(parts)]
        sizes = partitioner.sizes(1437, parts)
        bounds = np.cumsum(weights) / sum(weights) * (1437 - parts) + np.arange(1, parts + 1)
        assert np.abs(np.cumsum(sizes) - bounds).max() <= 0.5 + 1e-9
        assert [*map(len, partitioner.partition(labels_of(1437), parts, rng()))] == sizes.tolist()


# Which samples


@pytest.mark.parametrize(
    "form",
    [
        *("random_partition", "feature", "stratified", "random_sampling", "reseeded_stride", "quantity"),
        {"name": "shards", "per_node": 1},
        {"name": "dirichlet", "equal_sizes": True},
    ],
    ids=str,
)
def test_each_sample_is_on_each_node_as_often_as_another_one_of_its_label(form: Any) -> None:
    """And where parts have random labels, as often as any other one."""
    labels, parts = np.repeat([0, 1], 8), 4
    held = np.zeros((16, parts))
    for seed in range(TIMES):
        for node, part in enumerate(split(form, labels, parts, seed)):
            held[part, node] += 1 / TIMES
    error = ERRORS * 0.5 / sqrt(TIMES)
    for node, share in enumerate(held.T):
        assert share[:8] == pytest.approx(share[:8].mean(), abs=error), node
        assert share[8:] == pytest.approx(share[8:].mean(), abs=error), node
    if form != "quantity":
        assert held == pytest.approx(np.full((16, parts), 1 / parts), abs=error)


def test_contiguous_and_prefix_parts_follow_the_file() -> None:
    found = [split(form, labels_of(11), 3) for form in ("contiguous", "prefix_shuffle")]
    assert [part.tolist() for part in found[0]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert [part.tolist() for part in found[1]] == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("form", ["random_sampling", "reseeded_stride"])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_that_are_drawn_apart_overlap_by_chance(form: str, parts: int) -> None:
    found = split(form, labels_of(30_000), parts)
    coverage = len(np.unique(np.concatenate(found))) / 30_000
    assert coverage == pytest.approx(1 - (1 - 1 / parts) ** parts, abs=0.01)
    for one, other in pairwise(found):
        assert len(np.intersect1d(one, other)) / 30_000 == pytest.approx(1 / parts**2, abs=0.01)


# Labels


def test_stratified_parts_have_the_mix_of_the_set_to_one_sample() -> None:
    labels = labels_of(1437)
    for parts in (2, 5, 64, 1000):
        share = np.bincount(labels) / parts
        found = counts(labels, split("stratified", labels, parts))
        assert ((found == np.floor(share)) | (found == np.ceil(share))).all()


@pytest.mark.parametrize(("imbalance", "parts"), [(0.0, 7), (1.0, 7), (10.0, 1437)])
def test_parts_of_unequal_size_keep_the_mix_of_the_set(imbalance: float, parts: int) -> None:
    labels = labels_of(1437)
    found = split({"name": "quantity", "imbalance": imbalance}, labels, parts)
    mix, sizes = np.bincount(labels) / 1437, np.array([*map(len, found)])
    assert (abs(counts(labels, found) - sizes[:, None] * mix) <= 2 * (1 + mix * 10)).all()


@pytest.mark.parametrize(("per_node", "parts"), [(1, 7), (2, 5), (3, 64), (2, 700)])
def test_a_node_has_shards_of_the_samples_in_order_of_their_labels(per_node: int, parts: int) -> None:
    labels = labels_of(1437)
    found = split({"name": "shards", "per_node": per_node}, labels, parts)
    sizes = [*map(len, found)]
    assert max(sizes) - min(sizes) <= per_node
    # A label that ends within a shard is in one shard more.
    assert np.count_nonzero(counts(labels, found)) <= per_node * parts + 10 - 1


def test_shards_are_dealt_at_random() -> None:
    labels, generator = np.repeat(np.arange(10), 4), rng(6)
    alike = [
        len(np.unique(labels[Shards().partition(labels, 10, generator)[4]])) == 1 for _ in range(TIMES)
    ]
    chance = 1 / 19  # that the second shard of a node, of the 19 left, has the label of its first
    assert np.mean(alike) == pytest.approx(chance, abs=ERRORS * sqrt(chance * (1 - chance) / TIMES))


@pytest.mark.parametrize(("per_node", "parts"), [(1, 10), (1, 13), (2, 5), (3, 7), (7, 40)])
def test_each_node_has_the_given_number_of_classes(per_node: int, parts: int) -> None:
    labels = labels_of(6000)
    found = counts(labels, split({"name": "classes", "per_node": per_node}, labels, parts))
    assert (np.count_nonzero(found, axis=1) == per_node).all()
    assert np.ptp(np.count_nonzero(found, axis=0)) <= 1
    assert all(np.ptp(of_class[of_class > 0]) <= 1 for of_class in found.T)


def test_classes_are_dealt_at_random_and_a_single_node_has_all() -> None:
    labels, generator = np.arange(40) % 4, rng(7)
    hands = [(counts(labels, Classes().partition(labels, 3, generator))[2] > 0) for _ in range(TIMES)]
    assert np.mean(hands, axis=0) == pytest.approx([0.5] * 4, abs=ERRORS * 0.5 / sqrt(TIMES))
    assert len(Classes().partition(labels, 1, generator)[0]) == 40


# Dirichlet


@pytest.mark.parametrize("alpha", [0.3, 10.0])
@pytest.mark.parametrize("self_balancing", [False, True])
def test_shares_of_a_class_have_their_distribution(alpha: float, self_balancing: bool) -> None:
    of_class, parts, generator = np.full(5, 400), 4, rng(3)
    partitioner = Dirichlet(alpha=alpha, self_balancing=self_balancing)
    found = np.stack([partitioner.unequal_parts(of_class, parts, generator) for _ in range(TIMES)])
    variance = (1 / parts) * (1 - 1 / parts) / (alpha * parts + 1)
    rows = found[:, :1] if self_balancing else found  # later classes depend on who is full
    for node in range(parts):
        assert_mean_and_variance(rows[..., node].ravel() / 400, 1 / parts, variance)


@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_the_first_node_of_equal_size_draws_its_own_distribution(alpha: float) -> None:
    of_class, parts, size = np.array([500, 300, 200]), 20, 50
    partitioner = Dirichlet(alpha=alpha, equal_sizes=True)
    found = np.stack(
        [
            partitioner.equal_parts(of_class, parts, rng(seed))[:, rng(seed).permutation(parts)[0]]
            for seed in range(TIMES)
        ]
    )
    for share, p in zip(found.T / size, of_class / 1000, strict=True):
        of_distribution = p * (1 - p) / (alpha + 1)
        # That of the distribution, and that of 50 draws from it.
        assert_mean_and_variance(share, p, of_distribution + (p * (1 - p) - of_distribution) / size)


def test_nodes_of_equal_size_draw_in_random_order() -> None:
    """Nearly without mixing, three nodes of 20 draw from two classes of 30: one of them gets both."""
    of_class, generator = np.array([30, 30]), rng(4)
    partitioner = Dirichlet(alpha=1e-3, equal_sizes=True)
    mixed = [(partitioner.equal_parts(of_class, 3, generator) > 0).all(axis=0) for _ in range(TIMES)]
    assert np.mean(mixed, axis=0) == pytest.approx([1 / 3] * 3, abs=ERRORS * sqrt(2 / 9 / TIMES))


def test_a_node_above_the_mean_and_no_other_gets_no_further_class() -> None:
    partitioner, of_class = Dirichlet(alpha=0.5, self_balancing=True), np.array([4, 2, 2])
    at_the_mean = []
    for seed in range(100):
        found = partitioner.unequal_parts(of_class, 2, rng(seed))
        before = np.cumsum(found, axis=0) - found
        assert not found[before > 4].any()
        at_the_mean += [*found[before == 4]]
    assert 0 < np.count_nonzero(at_the_mean) < len(at_the_mean)


def test_small_classes_are_spread_over_all_nodes() -> None:
    """Counts are rounded at an offset of each class: with one for all, the same nodes would get all."""
    labels = np.arange(200 * 6) % 200
    sizes = np.array([*map(len, split({"name": "dirichlet", "alpha": 1e6}, labels, 60))])
    share = 6 / 60  # a node has at most one sample of a class
    assert abs(sizes - 200 * share).max() < ERRORS * sqrt(200 * share * (1 - share))


def test_parts_of_exactly_the_least_samples_are_enough() -> None:
    found = Dirichlet(alpha=1e6, min_samples=5).unequal_parts(np.array([10]), 2, rng())
    assert found.tolist() == [[5, 5]]


class AllOnFirstNode(np.random.Generator):
    """Assigns every class to the first node."""

    draws = 0

    def dirichlet(self, alpha: Floats, size: int) -> Floats:  # type: ignore[override]
        self.draws += 1
        return np.tile(np.eye(len(alpha))[0], (size, 1))


def test_the_error_after_the_last_draw_names_remedies() -> None:
    draws = AllOnFirstNode(np.random.PCG64(0))
    with pytest.raises(
        DataError, match=r"alpha 0\.2 .* less than 1 of 1437 .*raise alpha, use fewer nodes"
    ):
        Dirichlet(alpha=0.2).partition(labels_of(1437), 3, draws)
    assert draws.draws == DRAWS


# Images


@pytest.mark.parametrize("strength", [0.5, 3.0])
def test_noise_grows_linearly_from_node_to_node(strength: float) -> None:
    images = rng(8).standard_normal((200, 1, 10, 10)).astype(np.float32)
    given, partitioner = images.copy(), Feature(strength=strength)
    for rank in range(5):
        noise = (partitioner.transform_images(given, rank, 5, rng(rank)) - images).astype(float)
        assert_mean_and_variance(noise.ravel(), 0, (strength * rank / 4) ** 2)
        assert rank == 0 or noise.std(axis=(1, 2, 3)).min() > strength * rank / 8  # in every image
    np.testing.assert_array_equal(given, images)
    assert partitioner.transform_images(given, 0, 1, rng()) is given


@pytest.mark.parametrize(("rank", "angle"), [(1, 0.2), (3, 0.6)])
def test_images_turn_counter_clockwise_about_their_centre(rank: int, angle: float) -> None:
    """Bilinear interpolation is exact for ramps: to the right, and downwards."""
    down, right = np.mgrid[:11, :9] - np.array([5, 4])[:, None, None]
    ramps = np.tile(np.stack([right, down]).astype(np.float32), (1100, 1, 1, 1))
    ramps *= np.arange(1100, dtype=np.float32)[:, None, None, None] / 1000
    seen = Feature(distortion="rotation", strength=0.6).transform_images(ramps, rank, 4, rng())
    turned = np.stack([right * cos(angle) - down * sin(angle), right * sin(angle) + down * cos(angle)])
    inside = np.hypot(down, right) <= 4  # beyond the edges, the border value is repeated
    for image in (1, 1000, 1099):
        np.testing.assert_allclose(seen[image][:, inside], image / 1000 * turned[:, inside], atol=1e-5)
    assert np.abs(seen[1000, 0]).max() <= 4


# What cannot be split


@pytest.mark.parametrize(
    ("form", "most", "beyond", "named"),
    [
        ({"name": "shards", "per_node": 2}, (10, 5), (9, 5), ("per_node 2", "9 samples", "at most 1")),
        ({"name": "dirichlet", "min_samples": 2}, (10, 5), (9, 5), ("min_samples 2", "9", "at most 1")),
        ({"name": "classes", "per_node": 2}, (10, 5), (9, 5), ("per_node 2", "9 samples", "5 parts")),
        ({"name": "classes", "per_node": 2}, (50, 2), (50, 1), ()),  # a single node gets all classes
        ("random_partition", (5, 5), (4, 5), ("4 samples", "5 parts", "fewer nodes")),
    ],
    ids=str,
)
def test_the_smallest_set_that_can_be_split(
    form: Any, most: tuple[int, int], beyond: tuple[int, int], named: tuple[str, ...]
) -> None:
    partitioner = PARTITIONERS.parse(form)
    assert partitioner.validation_error(most[0], 4, most[1]) is None
    reason = partitioner.validation_error(beyond[0], 4, beyond[1]) or ""
    assert [each for each in named if each not in reason] == []


def test_reasons_name_classes_that_would_be_on_no_node_and_what_excludes_each_other() -> None:
    classes = Classes(per_node=3)
    assert classes.validation_error(1437, 9, 3) is None
    reason = classes.validation_error(1437, 10, 3)
    assert reason is not None
    assert "only 9 of 10 classes would be on a node; set per_node to 4" in reason
    assert "at most 2" in (classes.validation_error(1437, 2, 3) or "")
    both = Dirichlet(equal_sizes=True, self_balancing=True)
    assert "self_balancing must be false" in (both.validation_error(1437, 10, 4) or "")
    assert "reshuffle must be false" in (
        PARTITIONERS.parse({"name": "contiguous", "reshuffle": True}).validation_error(1437, 10, 4) or ""
    )
    with pytest.raises(DataError, match=r"class 1 has 2 samples for the 3 nodes .* per_node \(now 2\)"):
        Classes().partition(np.array([0] * 50 + [1] * 2), 3, rng())
    assert RandomSampling().validation_error(1, 1, 1) is None
