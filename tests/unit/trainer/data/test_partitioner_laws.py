"""Each partition follows the distribution stated in its partitioner's docstring."""

from __future__ import annotations

from math import cos, e, pi, sin, sqrt

import numpy as np
import pytest

from tests.unit.partitioner_support import ERRORS, TIMES, assert_mean_and_variance, counts, labels_of, rng
from trainer.data.base import DataError, Partitioner
from trainer.data.partitioners.classes import Classes
from trainer.data.partitioners.contiguous import Contiguous
from trainer.data.partitioners.feature import Feature
from trainer.data.partitioners.prefix_shuffle import PrefixShuffle
from trainer.data.partitioners.quantity import Quantity
from trainer.data.partitioners.random_partition import RandomPartition
from trainer.data.partitioners.random_sampling import RandomSampling
from trainer.data.partitioners.reseeded_stride import ReseededStride
from trainer.data.partitioners.shards import Shards
from trainer.data.partitioners.stratified import Stratified

# Random partitions


@pytest.mark.parametrize(("samples", "parts"), [(1437, 5), (10, 3), (1000, 1000), (60_000, 7)])
@pytest.mark.parametrize(
    "partitioner", [RandomPartition(), Feature(), Stratified(), Contiguous(), ReseededStride()]
)
def test_part_sizes_differ_by_at_most_one(partitioner: Partitioner, samples: int, parts: int) -> None:
    sizes = [len(part) for part in partitioner.partition(labels_of(samples), parts, rng())]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) == (0 if samples % parts == 0 else 1)


@pytest.mark.parametrize("partitioner", [RandomPartition(), Feature(), RandomSampling(), ReseededStride()])
def test_label_counts_of_random_parts_are_hypergeometric(partitioner: Partitioner) -> None:
    labels = np.arange(100) // 30  # 30 samples of class 0; their number in a part of 20 is hypergeometric
    seed = rng(1)
    found = np.array([counts(labels, partitioner.partition(labels, 5, seed))[3, 0] for _ in range(TIMES)])
    mean, variance = 20 * 0.3, 20 * 0.3 * 0.7 * (100 - 20) / (100 - 1)
    assert_mean_and_variance(found.astype(float), mean, variance, fourth=3 * variance**2)


def test_random_partition_ignores_file_order() -> None:
    labels = np.repeat(np.arange(10), 100)  # sorted by class: a contiguous part would have two classes
    for part in RandomPartition().partition(labels, 5, rng()):
        assert len(np.unique(labels[part])) == 10


@pytest.mark.parametrize(("samples", "parts", "size"), [(1000, 2, 500), (1000, 3, 334), (1437, 5, 288)])
def test_random_sampling_draws_without_replacement_within_a_node(
    samples: int, parts: int, size: int
) -> None:
    for part in RandomSampling().partition(labels_of(samples), parts, rng()):
        assert len(part) == len(np.unique(part)) == size


@pytest.mark.parametrize(("parts", "published"), [(1, 1.0), (2, 0.75), (5, 0.672), (20, 0.642)])
def test_random_sampling_coverage(parts: int, published: float) -> None:
    split = RandomSampling().partition(labels_of(20_000), parts, rng())
    coverage = len(np.unique(np.concatenate(split))) / 20_000
    assert coverage == pytest.approx(1 - (1 - 1 / parts) ** parts, abs=0.01)
    assert coverage == pytest.approx(published, abs=0.01)


def test_random_sampling_is_independent_across_nodes() -> None:
    first, second = RandomSampling().partition(labels_of(20_000), 2, rng())
    assert len(np.intersect1d(first, second)) / 20_000 == pytest.approx(0.25, abs=0.01)


# Published mistakes


@pytest.mark.parametrize(("samples", "parts", "size"), [(1000, 2, 500), (1000, 3, 334), (1437, 5, 288)])
def test_prefix_shuffle_gives_every_node_the_same_prefix_of_the_file(
    samples: int, parts: int, size: int
) -> None:
    for part in PrefixShuffle().partition(labels_of(samples), parts, rng()):
        assert part.tolist() == list(range(size))


@pytest.mark.parametrize(("parts", "coverage"), [(1, 1.0), (2, 0.75), (3, 19 / 27), (5, 0.67232)])
def test_reseeded_stride_coverage(parts: int, coverage: float) -> None:
    found = [
        len(np.unique(np.concatenate(ReseededStride().partition(labels_of(1200), parts, rng(seed))))) / 1200
        for seed in range(TIMES)
    ]
    # Standard error for independent samples: an upper bound, because parts have a fixed size.
    error = sqrt(coverage * (1 - coverage) / 1200 / TIMES)
    assert np.mean(found) == pytest.approx(coverage, abs=ERRORS * error)


def test_reseeded_strides_are_independent_permutations_without_repeats() -> None:
    first, second, third = ReseededStride().partition(labels_of(20_001), 3, rng())
    assert [len(np.unique(part)) for part in (first, second, third)] == [6667] * 3
    for one, other in [(first, second), (second, third), (first, third)]:
        assert len(np.intersect1d(one, other)) / 20_001 == pytest.approx(1 / 9, abs=0.01)


# Contiguous and stratified partitions


def test_contiguous_parts_follow_file_order() -> None:
    labels = np.arange(11) // 4
    assert [part.tolist() for part in Contiguous().partition(labels, 3, rng())] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]


@pytest.mark.parametrize(("samples", "parts"), [(1437, 2), (1437, 5), (1437, 64), (1437, 1000)])
def test_stratified_label_counts_are_proportional_to_one_sample(samples: int, parts: int) -> None:
    labels = labels_of(samples)
    share = np.bincount(labels) / parts
    found = counts(labels, Stratified().partition(labels, parts, rng()))
    assert ((found == np.floor(share)) | (found == np.ceil(share))).all()


def test_stratified_draws_samples_of_a_label_at_random() -> None:
    labels = np.arange(40) % 2
    seed = rng(2)
    with_sample_7 = [7 in Stratified().partition(labels, 4, seed)[0] for _ in range(TIMES)]
    assert np.mean(with_sample_7) == pytest.approx(0.25, abs=ERRORS * sqrt(0.25 * 0.75 / TIMES))


# Shards and classes


@pytest.mark.parametrize("per_node", [1, 2, 5])
def test_even_shards_hold_one_label_each(per_node: int) -> None:
    labels = rng().permutation(np.repeat(np.arange(10), 200))
    split = Shards(per_node=per_node).partition(labels, 10, rng())
    assert {len(part) for part in split} == {200}
    assert (np.count_nonzero(counts(labels, split), axis=1) <= per_node).all()


@pytest.mark.parametrize(("per_node", "parts"), [(1, 7), (2, 5), (3, 64), (2, 700)])
def test_shards_mix_labels_only_at_label_boundaries(per_node: int, parts: int) -> None:
    labels = labels_of(1437)
    split = Shards(per_node=per_node).partition(labels, parts, rng())
    sizes = [len(part) for part in split]
    assert max(sizes) - min(sizes) <= per_node
    assert np.count_nonzero(counts(labels, split)) <= per_node * parts + 10 - 1


def test_shards_are_dealt_at_random() -> None:
    labels, seed = np.repeat(np.arange(10), 4), rng(6)
    alike = [len(np.unique(labels[Shards().partition(labels, 10, seed)[4]])) == 1 for _ in range(TIMES)]
    chance = 1 / 19  # probability that a node's second shard, of the 19 left, has the label of its first
    assert np.mean(alike) == pytest.approx(chance, abs=ERRORS * sqrt(chance * (1 - chance) / TIMES))


@pytest.mark.parametrize(("per_node", "parts"), [(1, 10), (1, 13), (2, 5), (3, 7), (10, 1), (7, 40)])
def test_each_node_has_the_given_number_of_classes(per_node: int, parts: int) -> None:
    labels = labels_of(6000)
    found = counts(labels, Classes(per_node=per_node).partition(labels, parts, rng()))
    assert (np.count_nonzero(found, axis=1) == per_node).all()
    holders = np.count_nonzero(found, axis=0)
    assert holders.max() - holders.min() <= 1
    for of_class in found.T:
        held = of_class[of_class > 0]
        assert held.max() - held.min() <= 1


def test_classes_are_dealt_at_random() -> None:
    labels, seed = np.arange(40) % 4, rng(7)
    partitioner = Classes(per_node=2)
    hands = [(counts(labels, partitioner.partition(labels, 3, seed))[2] > 0) for _ in range(TIMES)]
    assert np.mean(hands, axis=0) == pytest.approx([0.5] * 4, abs=ERRORS * 0.5 / sqrt(TIMES))


def test_class_with_fewer_samples_than_nodes() -> None:
    labels = np.array([0] * 50 + [1] * 2)
    with pytest.raises(
        DataError, match=r"class 1 has 2 samples for the 3 nodes .* lower per_node \(now 2\)"
    ):
        Classes().partition(labels, 3, rng())


# Quantity

WEIGHTS = {
    "power": lambda i, parts, s: 1 / (i + 1) ** s,
    "exponential": lambda i, parts, s: e ** (-s * i / (parts - 1)),
}


@pytest.mark.parametrize("law", WEIGHTS)
@pytest.mark.parametrize("imbalance", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("parts", [2, 5, 100])
def test_quantities_follow_the_law_to_one_sample(law: str, imbalance: float, parts: int) -> None:
    weights = [WEIGHTS[law](i, parts, imbalance) for i in range(parts)]
    partitioner = Quantity(law=law, imbalance=imbalance)  # type: ignore[arg-type]
    sizes = [len(part) for part in partitioner.partition(labels_of(1437), parts, rng())]
    expected = [1 + (1437 - parts) * weight / sum(weights) for weight in weights]
    assert sizes == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("imbalance", [0.3, 1.0])
def test_quantities_of_the_log_normal_law_have_its_quantiles(imbalance: float) -> None:
    sizes = Quantity(law="log_normal", imbalance=imbalance).sizes(10_000_000, 1001)
    assert (np.diff(sizes) <= 1).all()
    logarithms = np.log(sizes / sizes[500])  # relative to the median node
    # One and two standard deviations, at the corresponding quantiles of the normal distribution.
    for deviations, above in [(1, 0.158655), (2, 0.022750), (-1, 0.841345)]:
        node = round(above * 1001 - 0.5)
        assert logarithms[node] == pytest.approx(imbalance * deviations, abs=0.02)


def test_quantities_of_few_nodes_under_the_log_normal_law() -> None:
    # Four nodes take the normal distribution's quantiles at 7/8, 5/8, 3/8 and 1/8.
    logarithms = np.log(Quantity(law="log_normal", imbalance=0.5).weights(4))
    expected = [0.5 * z for z in (1.150349, 0.318639, -0.318639, -1.150349)]
    assert logarithms == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("law", ["power", "log_normal", "exponential"])
@pytest.mark.parametrize(("imbalance", "parts"), [(0.0, 7), (1.0, 7), (3.0, 64), (10.0, 1437)])
def test_parts_of_unequal_size_keep_the_label_distribution(law: str, imbalance: float, parts: int) -> None:
    labels = labels_of(1437)
    partitioner = Quantity(law=law, imbalance=imbalance)  # type: ignore[arg-type]
    split = partitioner.partition(labels, parts, rng())
    sizes = np.array([len(part) for part in split])
    if imbalance == 0:
        assert max(sizes) - min(sizes) <= 1
    mix = np.bincount(labels) / 1437
    assert (abs(counts(labels, split) - sizes[:, None] * mix) <= 2 * (1 + mix * 10)).all()


# Feature


@pytest.mark.parametrize("strength", [0.5, 3.0])
def test_noise_grows_linearly_from_node_to_node(strength: float) -> None:
    images = rng(8).standard_normal((200, 1, 10, 10)).astype(np.float32)
    partitioner = Feature(strength=strength)
    for rank in range(1, 5):
        noise = (partitioner.transform_images(images, rank, 5, rng(rank)) - images).astype(float).ravel()
        deviation = strength * rank / 4
        assert_mean_and_variance(noise, 0, deviation**2, fourth=3 * deviation**4)
        # The noise depends neither on brightness nor on the image.
        assert abs(np.corrcoef(noise, images.ravel())[0, 1]) < ERRORS / sqrt(noise.size)
        assert noise.reshape(200, -1).std(axis=1).min() > deviation / 2


def test_quarter_turns() -> None:
    images = rng(9).standard_normal((1500, 2, 7, 7)).astype(np.float32)
    partitioner = Feature(distortion="rotation", strength=pi)
    for rank, turns in [(1, 1), (2, 2)]:
        seen = partitioner.transform_images(images, rank, 3, rng())
        np.testing.assert_allclose(seen, np.rot90(images, turns, axes=(2, 3)), atol=1e-5)


@pytest.mark.parametrize(("rank", "angle"), [(1, 0.2), (2, 0.4), (3, 0.6)])
def test_rotation_by_any_angle(rank: int, angle: float) -> None:
    # Bilinear interpolation is exact for a ramp: rotated by the angle, it rises in that direction.
    down, right = np.mgrid[:11, :9] - np.array([5, 4])[:, None, None]
    ramp = right[None, None].astype(np.float32)
    seen = Feature(distortion="rotation", strength=0.6).transform_images(ramp, rank, 4, rng())[0, 0]
    inside = np.hypot(down, right) <= 4  # beyond the edges, the border value is repeated
    turned = right * cos(angle) - down * sin(angle)
    np.testing.assert_allclose(seen[inside], turned[inside], atol=1e-5)
    assert abs(seen).max() <= 4
