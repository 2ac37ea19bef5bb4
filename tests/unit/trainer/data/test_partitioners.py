"""Mistakes in partitioners: sizes and their rounding, shares of labels, what is drawn, and what is refused.

The laws of partitioners say that parts are valid. Here each follows the distribution of its docstring.
Seeds are fixed. An estimate may deviate by ERRORS standard errors, which follow from the distribution.
"""

from __future__ import annotations

import re
from itertools import product
from math import ceil, cos, exp, sin, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.base import DataError, Indices, Labels
from trainer.data.partitioners.dirichlet import Dirichlet
from trainer.data.partitioners.feature import Feature
from trainer.data.partitioners.quantity import Quantity
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


def split(name: str, labels: Labels, parts: int, seed: int = 0, **fields: Any) -> list[Indices]:
    return PARTITIONERS.parse({"name": name, **fields}).partition(labels, parts, rng(seed))


def counts(name: str, labels: Labels, parts: int, seed: int = 0, **fields: Any) -> Indices:
    """Samples of each label on each node, shape (parts, classes)."""
    found = split(name, labels, parts, seed, **fields)
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in found])


def assert_share(found: Any, share: float) -> None:
    """Check the mean of TIMES independent draws of 0 or 1."""
    error = ERRORS * sqrt(share * (1 - share) / TIMES)
    np.testing.assert_allclose(np.mean(found, axis=0), share, rtol=0, atol=error)


def assert_mean_and_variance(values: Floats, mean: float, variance: float) -> None:
    """Check independent values by the standard errors of both estimates."""
    assert values.mean() == pytest.approx(mean, abs=ERRORS * sqrt(variance / len(values)))
    squares = (values - mean) ** 2
    assert squares.mean() == pytest.approx(variance, abs=ERRORS * squares.std() / sqrt(len(values)))


# Sizes


def test_part_sizes_differ_by_at_most_one_and_the_first_parts_are_larger() -> None:
    names = ("random_partition", "feature", "stratified", "contiguous", "reseeded_stride", "dirichlet")
    for name, (samples, parts) in product(names, SIZES):
        expected = [samples // parts + (node < samples % parts) for node in range(parts)]
        fields = {"alpha": 1e-3, "equal_sizes": True} if name == "dirichlet" else {}
        assert [*map(len, split(name, labels_of(samples), parts, **fields))] == expected, name


def test_shares_that_are_no_whole_number_are_rounded_up() -> None:
    for name, (samples, parts) in product(("random_sampling", "prefix_shuffle"), SIZES):
        for part in split(name, labels_of(samples), parts):
            assert len(np.unique(part)) == len(part) == ceil(samples / parts)


def test_quantities_follow_their_law_with_rounded_bounds() -> None:
    for imbalance, parts in ((0.0, 7), (0.5, 2), (1.0, 5), (3.0, 64)):
        middles = [NormalDist().inv_cdf((parts - node - 0.5) / parts) for node in range(parts)]
        for law, weights in {
            "power": [1 / (node + 1) ** imbalance for node in range(parts)],
            "log_normal": [exp(imbalance * middle) for middle in middles],
            "exponential": [exp(-imbalance * node / (parts - 1)) for node in range(parts)],
        }.items():
            sizes = Quantity.model_validate({"law": law, "imbalance": imbalance}).sizes(1437, parts)
            bounds = np.cumsum(weights) / sum(weights) * (1437 - parts) + np.arange(1, parts + 1)
            assert np.abs(np.cumsum(sizes) - bounds).max() <= 0.5 + 1e-9
            found = split("quantity", labels_of(1437), parts, law=law, imbalance=imbalance)
            assert [*map(len, found)] == sizes.tolist()


# Which samples


RANDOM = ("random_partition", "feature", "stratified", "random_sampling", "reseeded_stride", "quantity")


@pytest.mark.parametrize("name", [*RANDOM, "shards", "dirichlet"])
def test_each_sample_is_on_each_node_as_often_as_another_one_of_its_label(name: str) -> None:
    """And where parts have random labels and equal sizes, as often as any other one."""
    fields = {"shards": {"per_node": 1}, "dirichlet": {"equal_sizes": True}}.get(name, {})
    held = np.zeros((TIMES, 16, 4))
    for seed in range(TIMES):
        for node, part in enumerate(split(name, np.repeat([0, 1], 8), 4, seed, **fields)):
            held[seed, part, node] = 1
    if name != "quantity":
        assert_share(held, 1 / 4)
    shares = held.mean(axis=0).reshape(2, 8, 4)
    assert np.abs(shares - shares.mean(axis=1, keepdims=True)).max() < ERRORS * 0.5 / sqrt(TIMES)


def test_contiguous_and_prefix_parts_follow_the_file() -> None:
    found = [np.array(split(name, labels_of(6), 2)).tolist() for name in ("contiguous", "prefix_shuffle")]
    assert found == [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2]] * 2]


def test_parts_that_are_drawn_apart_overlap_by_chance() -> None:
    for name, parts in product(("random_sampling", "reseeded_stride"), (2, 3, 5)):
        found = split(name, labels_of(30_000), parts)
        coverage = len(np.unique(np.concatenate(found))) / 30_000
        assert coverage == pytest.approx(1 - (1 - 1 / parts) ** parts, abs=0.01)


# Labels


def test_stratified_parts_have_the_mix_of_the_set_to_one_sample() -> None:
    labels = labels_of(1437)
    for parts in (2, 5, 64, 1000):
        assert abs(counts("stratified", labels, parts) - np.bincount(labels) / parts).max() < 1


def test_parts_of_unequal_size_keep_the_mix_of_the_set() -> None:
    labels = labels_of(1437)
    mix = np.bincount(labels) / 1437
    for imbalance, parts in ((0.0, 7), (1.0, 7), (10.0, 1437)):
        found = counts("quantity", labels, parts, imbalance=imbalance)
        assert (abs(found - found.sum(axis=1, keepdims=True) * mix) <= 2 * (1 + mix * 10)).all()


def test_a_node_has_shards_of_the_samples_in_order_of_their_labels() -> None:
    for per_node, parts in ((1, 7), (2, 5), (3, 64), (2, 700)):
        found = counts("shards", labels_of(1437), parts, per_node=per_node)
        assert np.ptp(found.sum(axis=1)) <= per_node
        # A label that ends within a shard is in one shard more.
        assert np.count_nonzero(found) <= per_node * parts + 10 - 1


def test_shards_are_dealt_at_random() -> None:
    labels = np.repeat(np.arange(10), 4)
    alike = [np.count_nonzero(counts("shards", labels, 10, seed)[4]) == 1 for seed in range(TIMES)]
    assert_share(alike, 1 / 19)  # that the second of the 19 shards left has the label of the first


def test_each_node_has_the_given_number_of_classes() -> None:
    for per_node, parts in ((1, 10), (1, 13), (2, 5), (3, 7), (7, 40)):
        found = counts("classes", labels_of(6000), parts, per_node=per_node)
        assert (np.count_nonzero(found, axis=1) == per_node).all()
        assert np.ptp(np.count_nonzero(found, axis=0)) <= 1
        assert all(np.ptp(of_class[of_class > 0]) <= 1 for of_class in found.T)


def test_classes_are_dealt_at_random_and_a_single_node_has_all() -> None:
    labels = np.arange(40) % 4
    assert_share([counts("classes", labels, 3, seed)[2] > 0 for seed in range(TIMES)], 1 / 2)
    assert counts("classes", labels, 1).tolist() == [[10] * 4]


# Dirichlet


def test_shares_of_a_class_have_their_distribution() -> None:
    for self_balancing, alpha in product((False, True), (0.3, 10.0)):
        of_class, parts, generator = np.full(5, 400), 4, rng(3)
        partitioner = Dirichlet(alpha=alpha, self_balancing=self_balancing)
        found = np.stack([partitioner.unequal_parts(of_class, parts, generator) for _ in range(TIMES)])
        variance = (1 / parts) * (1 - 1 / parts) / (alpha * parts + 1)
        rows = found[:, :1] if self_balancing else found  # later classes depend on who is full
        for node in range(parts):
            assert_mean_and_variance(rows[..., node].ravel() / 400, 1 / parts, variance)


def test_the_first_node_of_equal_size_draws_its_own_distribution() -> None:
    of_class, parts, size, alpha = np.array([500, 300, 200]), 20, 50, 0.1
    draw = Dirichlet(alpha=alpha, equal_sizes=True).equal_parts
    first = [draw(of_class, parts, rng(seed))[:, rng(seed).permutation(parts)[0]] for seed in range(TIMES)]
    found = np.stack(first)
    for share, p in zip(found.T / size, of_class / 1000, strict=True):
        of_distribution = p * (1 - p) / (alpha + 1)
        # That of the distribution, and that of 50 draws from it.
        assert_mean_and_variance(share, p, of_distribution + (p * (1 - p) - of_distribution) / size)


def test_nodes_of_equal_size_draw_in_random_order() -> None:
    """Nearly without mixing, three nodes of 20 draw from two classes of 30: one of them gets both."""
    labels, fields = np.repeat([0, 1], 30), {"alpha": 1e-3, "equal_sizes": True}
    drawn = [counts("dirichlet", labels, 3, seed, **fields) for seed in range(TIMES)]
    assert_share([(each > 0).all(axis=1) for each in drawn], 1 / 3)


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
    sizes = counts("dirichlet", np.arange(200 * 6) % 200, 60, alpha=1e6).sum(axis=1)
    share = 6 / 60  # a node has at most one sample of a class
    assert abs(sizes - 200 * share).max() < ERRORS * sqrt(200 * share * (1 - share))


def test_a_split_with_too_small_parts_is_drawn_again_and_at_last_an_error() -> None:
    assert counts("dirichlet", np.zeros(10, int), 2, alpha=1e6, min_samples=5).tolist() == [[5], [5]]
    for seed in range(20):  # a single draw often has smaller parts
        found = counts("dirichlet", labels_of(200), 10, seed, alpha=1.0, min_samples=8)
        assert found.sum(axis=1).min() >= 8
    error = r"alpha 0\.001 .* less than 1 of 1437 .*raise alpha, use fewer nodes"
    with pytest.raises(DataError, match=error):  # each of 10 classes is nearly always on one node
        split("dirichlet", labels_of(1437), 20, alpha=1e-3)


# Images


def test_noise_grows_linearly_from_node_to_node() -> None:
    images, strength = rng(8).standard_normal((200, 1, 10, 10)).astype(np.float32), 3.0
    partitioner = Feature(strength=strength)
    for rank in range(5):
        noise = (partitioner.transform_images(images, rank, 5, rng(rank)) - images).astype(float)
        assert_mean_and_variance(noise.ravel(), 0, (strength * rank / 4) ** 2)
        assert rank == 0 or noise.std(axis=(1, 2, 3)).min() > strength * rank / 8  # in every image


def test_images_turn_counter_clockwise_about_their_centre() -> None:
    """Bilinear interpolation is exact for ramps: to the right, and downwards."""
    down, right = np.mgrid[:11, :9] - np.array([5, 4])[:, None, None]
    ramps = np.tile(np.stack([right, down]).astype(np.float32), (1100, 1, 1, 1))
    ramps *= np.arange(1100, dtype=np.float32)[:, None, None, None] / 1000
    angle = 0.4  # of node 2 of 4, where that of the last one is 0.6
    seen = Feature(distortion="rotation", strength=0.6).transform_images(ramps, 2, 4, rng())
    turned = np.stack([right * cos(angle) - down * sin(angle), right * sin(angle) + down * cos(angle)])
    inside = np.hypot(down, right) <= 4  # beyond the edges, the border value is repeated
    for image in (1, 1000, 1099):
        np.testing.assert_allclose(seen[image][:, inside], image / 1000 * turned[:, inside], atol=1e-5)
    assert np.abs(seen[1000, 0]).max() <= 4


# What cannot be split


def test_reasons_name_parameters_and_what_is_allowed() -> None:
    """Of samples, classes and parts that just fit, and of those that do not."""
    both = {"equal_sizes": True, "self_balancing": True}
    for name, fields, fit, unfit, named in (
        ("random_partition", {}, (5, 4, 5), (4, 4, 5), "4 samples .* 5 parts; use fewer nodes"),
        ("shards", {"per_node": 2}, (10, 4, 5), (9, 4, 5), "per_node 2 for 5 .* 9 samples; .*at most 1"),
        ("dirichlet", {"min_samples": 2}, (10, 4, 5), (9, 4, 5), "min_samples 2 .* 9 .*at most 1"),
        ("dirichlet", both, None, (1437, 10, 4), "self_balancing must be false"),
        ("classes", {"per_node": 2}, (10, 4, 5), (9, 4, 5), "per_node 2 in each of 5 .* 9 samples"),
        ("classes", {"per_node": 1}, (50, 4, 1), (50, 4, 3), "only 3 of 4 .*set per_node to 2"),
        ("classes", {"per_node": 3}, (1437, 9, 3), (1437, 10, 3), "only 9 of 10 .*set per_node to 4"),
        ("classes", {"per_node": 3}, (1437, 3, 3), (1437, 2, 3), "per_node 3 .*at most 2"),
    ):
        partitioner = PARTITIONERS.parse({"name": name, **fields})
        assert fit is None or partitioner.validation_error(*fit) is None
        assert re.search(named, partitioner.validation_error(*unfit) or "")
    with pytest.raises(DataError, match=r"class 1 has 2 samples for the 3 nodes .* per_node \(now 2\)"):
        split("classes", np.array([0] * 50 + [1] * 2), 3)
