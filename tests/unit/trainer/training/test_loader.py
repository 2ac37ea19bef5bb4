"""The data loader: each sample once per epoch, shuffled, with shares that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainer.core.rng import RngFactory
from trainer.data.base import DataError, Split
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch, BatchLoader, PartitionedSplit
from trainer.training.partition import Partition

SAMPLES = 103  # prime: no batch size and no number of nodes divides it
TWO_CLASSES = {"name": "synthetic", "classes": 2}


def split(channels: int = 2) -> Split:
    """Images whose pixels are the sample's index, and labels derived from it."""
    images = np.random.default_rng(0).random((SAMPLES, channels, 3, 4), dtype=np.float32)
    images[:, 0, 0, 0] = np.arange(SAMPLES)
    return Split(images, np.arange(SAMPLES) % 7)


def loader(
    rank: int = 0, size: int = 3, seed: int = 0, train: Split | None = None, **fields: Any
) -> BatchLoader:
    run = RunSpec.model_validate(
        {"strategy": "all_reduce", "nodes": size, "seed": seed, "batch_size": 10, **fields}
    )
    return BatchLoader(train or split(), run, RngFactory(seed), rank, size)


def samples_in(batch: Batch) -> list[int]:
    return [int(number) for number in batch.inputs[:, 0, 0, 0]]


METHODS = ["batches", "synchronous_batches"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_nodes_together_load_each_sample_once_per_epoch(method: str, size: int) -> None:
    for epoch in (1, 2):
        loaded: list[int] = []
        for rank in range(size):
            one = loader(rank, size)
            mine = [int(i) for _, indices in getattr(one, method)(epoch) for i in indices]
            assert sorted(mine) == sorted(one.parts(epoch)[rank])
            loaded += mine
        assert sorted(loaded) == list(range(SAMPLES))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("channels", [1, 3])
def test_batches_hold_the_images_and_labels_of_the_samples(method: str, channels: int) -> None:
    train = split(channels)
    before = train.inputs.copy()
    for batch, indices in getattr(loader(1, 2, train=train), method)(1):
        np.testing.assert_array_equal(batch.inputs.numpy(), train.inputs[indices])
        np.testing.assert_array_equal(batch.targets.numpy(), train.labels[indices])
        assert batch.inputs.dtype == torch.float32
        assert batch.targets.dtype == torch.int64
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(train.inputs, before)


def test_last_batch_holds_the_remaining_samples() -> None:
    sizes = [len(batch.targets) for batch, _ in loader(0, 2).batches(1)]  # 52 samples
    assert sizes == [10, 10, 10, 10, 10, 2]
    sizes = [len(batch.targets) for batch, _ in loader(0, 1, batch_size=1000).batches(1)]
    assert sizes == [103]


@pytest.mark.parametrize("method", METHODS)
def test_steps_are_numbered(method: str) -> None:
    batches = [batch for batch, _ in getattr(loader(0, 2), method)(1)]
    assert [(batch.step, batch.steps) for batch in batches] == [(step, 6) for step in range(1, 7)]


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_a_batch_that_count(method: str) -> None:
    for rank in range(3):
        batches = [*getattr(loader(rank, 3), method)(1)]
        assert [batch.samples for batch, _ in batches] == [len(indices) for _, indices in batches]


# Synchronous batches


@pytest.mark.parametrize(
    ("samples", "size", "batch_size"),
    [
        (103, 1, 10),
        (103, 2, 10),
        (103, 5, 10),
        (103, 2, 52),
        (103, 2, 51),
        (21, 2, 10),
        (5, 4, 1),
        (7, 7, 3),
    ],
)
def test_every_rank_takes_every_step_and_shares_add_up(samples: int, size: int, batch_size: int) -> None:
    dataset = {"name": "synthetic", "samples": samples}
    train = Split(split().inputs[:samples], split().labels[:samples])
    ranks = [
        list(loader(rank, size, train=train, dataset=dataset, batch_size=batch_size).synchronous_batches(1))
        for rank in range(size)
    ]
    assert len({len(steps) for steps in ranks}) == 1
    for synchronous in zip(*ranks, strict=True):
        total = sum(len(indices) for _, indices in synchronous)
        assert sum(batch.share for batch, _ in synchronous) == pytest.approx(1)
        for batch, indices in synchronous:
            assert batch.share == pytest.approx(len(indices) / total)
            assert len(batch.targets) == max(1, len(indices))
    assert sum(len(indices) for steps in ranks for _, indices in steps) == samples


def test_rank_without_samples_left_has_share_0() -> None:
    # 103 samples in parts of 52 and 51: with batches of 51 rank 1 has none left in step 2.
    steps = list(loader(1, 2, batch_size=51).synchronous_batches(1))
    assert [(batch.share, len(indices), len(batch.targets)) for batch, indices in steps] == [
        (0.5, 51, 51),
        (0.0, 0, 1),
    ]


def test_mean_weighted_by_share_is_the_mean_of_all_samples() -> None:
    # As all_reduce averages gradients; a sample's index stands in for its gradient.
    ranks = [list(loader(rank, 4).synchronous_batches(1)) for rank in range(4)]
    for synchronous in zip(*ranks, strict=True):
        weighted = sum(batch.inputs[:, 0, 0, 0].mean().item() * batch.share for batch, _ in synchronous)
        together = np.concatenate([indices for _, indices in synchronous])
        assert weighted == pytest.approx(together.mean())


# Order and reshuffling


def test_order_depends_on_rank_epoch_and_seed() -> None:
    one = loader(0, 2)
    assert one.order(1).tolist() == loader(0, 2).order(1).tolist()
    assert one.order(2).tolist() != one.order(1).tolist()
    assert sorted(one.order(2)) == sorted(one.order(1))
    assert one.order(1).tolist() == one.order(1).tolist()  # independent of the calls in between
    orders = [loader(rank, 5).order(1)[:20] for rank in range(5)]
    assert len({tuple(np.argsort(order)) for order in orders}) == 5  # different permutations
    assert loader(0, 2, seed=1).order(1).tolist() != one.order(1).tolist()
    assert one.order(1).tolist() != sorted(one.order(1))


def test_all_ranks_compute_the_same_split() -> None:
    splits = [[part.tolist() for part in loader(rank, 3).parts(1)] for rank in range(3)]
    assert splits[0] == splits[1] == splits[2]


def test_split_is_constant_without_reshuffling() -> None:
    one = loader()
    assert [part.tolist() for part in one.parts(1)] == [part.tolist() for part in one.parts(5)]


def test_reshuffling_changes_the_split_every_epoch_equally_on_all_ranks() -> None:
    fields = {"partitioner": {"name": "random_partition", "reshuffle": True}}
    one, other = loader(0, **fields), loader(2, **fields)
    first, second = ([part.tolist() for part in one.parts(epoch)] for epoch in (1, 2))
    assert first != second
    assert [part.tolist() for part in other.parts(2)] == second
    assert [part.tolist() for part in one.parts(1)] == first  # repeatable
    assert sorted(one.order(2)) == sorted(second[0])


def test_strategy_without_partition_loads_all_samples() -> None:
    one = loader(0, 1, strategy="serial")
    assert sorted(one.order(1)) == list(range(SAMPLES))
    assert [len(part) for part in one.parts(1)] == [SAMPLES]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("distortion", ["noise", "rotation"])
@pytest.mark.parametrize("reshuffle", [False, True])
def test_images_are_distorted_by_the_partitioner(method: str, distortion: str, reshuffle: bool) -> None:
    train = split()
    before = train.inputs.copy()
    fields = {"partitioner": {"name": "feature", "distortion": distortion, "reshuffle": reshuffle}}
    for rank in range(3):
        one = loader(rank, train=train, **fields)
        for epoch in (1, 2):
            own = one.parts(epoch)[rank]
            rng = RngFactory(0).generator("distort", rank, epoch if reshuffle else 0)
            seen = one._spec.partitioner.transform_images(train.inputs[own], rank, 3, rng)
            assert np.array_equal(seen, train.inputs[own]) is (rank == 0)
            for batch, indices in getattr(one, method)(epoch):
                positions = [own.tolist().index(i) for i in indices]
                np.testing.assert_array_equal(batch.inputs[: len(indices)].numpy(), seen[positions])
                np.testing.assert_array_equal(batch.targets[: len(indices)].numpy(), train.labels[indices])
                assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(train.inputs, before)


def test_images_are_not_distorted_without_a_partition() -> None:
    train, fields = split(), {"partitioner": "feature", "strategy": "fault_injection"}
    for batch, indices in loader(2, train=train, **fields).batches(1):
        np.testing.assert_array_equal(batch.inputs.numpy(), train.inputs[indices])


def test_impossible_split_is_an_error_before_the_first_batch() -> None:
    rare = Split(split().inputs[:12], np.array([0] * 11 + [1]))
    with pytest.raises(DataError, match=r"class 1 has 1 samples for the 2 nodes"):
        loader(0, 2, train=rare, partitioner={"name": "classes", "per_node": 2}, dataset=TWO_CLASSES)


def test_partition_on_one_node_equals_serial() -> None:
    assert loader(0, 1).order(1).tolist() == loader(0, 1, strategy="serial").order(1).tolist()
    sampled = loader(0, 1, partitioner="random_sampling")
    assert sampled.order(1).tolist() == loader(0, 1).order(1).tolist()
    for (ours, _), (plain, _) in zip(
        loader(0, 1, partitioner="feature").batches(1), loader(0, 1).batches(1), strict=True
    ):
        np.testing.assert_array_equal(ours.inputs.numpy(), plain.inputs.numpy())


# Unequal parts


class Uneven(PartitionedSplit):
    """Of 103 samples, node 0 has 40, node 1 has 2 and node 2 the rest."""

    def partition(self, epoch: int) -> Partition:
        return Partition([np.arange(40), np.arange(40, 42), np.arange(42, SAMPLES)], batch=10)


def uneven(rank: int) -> BatchLoader:
    run = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 3, "batch_size": 10})
    shared = Uneven(split(), run, RngFactory(0), 3)
    return BatchLoader(split(), run, RngFactory(0), rank, 3, shared=shared)


@pytest.mark.parametrize(
    ("policy", "steps", "sizes"), [("join", 7, (40, 2, 61)), ("drop", 1, (2, 2, 2)), ("pad", 7, (61,) * 3)]
)
def test_unequal_parts_follow_the_policy(policy: Any, steps: int, sizes: tuple[int, ...]) -> None:
    for epoch in (1, 2):
        indices_by_part = uneven(0).samples_by_part(epoch, policy)
        shares = np.zeros(steps)
        for rank in range(3):
            one = uneven(rank)
            batches = list(one.synchronous_batches(epoch, policy))
            indices = np.concatenate([indices for _, indices in batches])
            assert len(batches) == steps
            assert len(indices) == sizes[rank]
            assert set(indices) <= set(one.parts(epoch)[rank])
            np.testing.assert_array_equal(np.sort(indices), np.sort(indices_by_part[rank]))
            counts = np.bincount(indices)[one.parts(epoch)[rank].min() :]
            assert counts.max() - counts.min() <= (policy == "pad" or policy == "drop")
            shares += [batch.share for batch, _ in batches]
        np.testing.assert_allclose(shares, 1)


# Augmentation


def shifted(images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Replace the images with one random number per batch."""
    return images * 0 + rng.random()


def drawn(one: BatchLoader, epoch: int, method: str) -> list[float]:
    return [batch.inputs[0, 0, 0, 0].item() for batch, _ in getattr(one, method)(epoch)]


@pytest.mark.parametrize("method", METHODS)
def test_augmentation_draws_depend_on_seed_rank_epoch_and_step(method: str) -> None:
    def changing(rank: int, seed: int = 0) -> BatchLoader:
        run = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, "batch_size": 10, "seed": seed})
        return BatchLoader(split(), run, RngFactory(seed), rank, 2, augment=shifted)

    trained, resumed = changing(0), changing(0)
    first, second = (drawn(trained, epoch, method) for epoch in (1, 2))
    assert drawn(resumed, 2, method) == second  # without loading epoch 1 first
    others = drawn(changing(1), 1, method) + drawn(changing(0, seed=1), 1, method)
    everything = first + second + others
    assert len(set(everything)) == len(everything) == 4 * 6


def test_augmentation_gets_its_own_copy_of_the_batch() -> None:
    def spoilt(images: torch.Tensor, _: np.random.Generator) -> torch.Tensor:
        assert images.is_contiguous(memory_format=torch.channels_last)
        return images.zero_()

    train = split()
    run = RunSpec.model_validate({"strategy": "serial", "batch_size": 10})
    one = BatchLoader(train, run, RngFactory(0), 0, 1, augment=spoilt)
    assert all(not batch.inputs.any() for batch, _ in one.batches(1))
    np.testing.assert_array_equal(train.inputs, split().inputs)
    for batch, indices in loader(0, 1).batches(1):
        np.testing.assert_array_equal(batch.inputs.numpy(), train.inputs[indices])
