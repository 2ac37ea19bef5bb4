"""Mistakes in batches: which samples, in which order and step, with which share, from whose memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.core.rng import RngFactory
from trainer.data.base import Split
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch, BatchLoader, PartitionedSplit
from trainer.training.partition import Partition

SAMPLES = 103  # prime: no batch size and no number of nodes divides it
METHODS = ["batches", "synchronous_batches"]


def split(samples: int = SAMPLES) -> Split:
    """Images of which one pixel is the sample's index, and labels derived from it."""
    images = np.random.default_rng(0).random((samples, 2, 3, 4), dtype=np.float32)
    images[:, 0, 0, 0] = np.arange(samples)
    return Split(images, np.arange(samples) % 7)


def loader(
    rank: int = 0,
    size: int = 3,
    seed: int = 0,
    train: Split | None = None,
    augment: Any = None,
    shared: PartitionedSplit | None = None,
    **fields: Any,
) -> BatchLoader:
    run = RunSpec.model_validate({"strategy": "all_reduce", "nodes": size, "batch_size": 10, **fields})
    return BatchLoader(train or split(), run, RngFactory(seed), rank, size, augment, shared=shared)


def batches(one: BatchLoader, method: str, epoch: int = 1) -> list[tuple[Batch, np.ndarray]]:
    return [*getattr(one, method)(epoch)]


class Parts(PartitionedSplit):
    """Consecutive parts of given sizes."""

    sizes: tuple[int, ...]
    batch: int

    def partition(self, epoch: int) -> Partition:
        ends = np.cumsum(self.sizes)
        return Partition([np.arange(e - n, e) for n, e in zip(self.sizes, ends, strict=True)], self.batch)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=4),
    batch=st.integers(1, 12),
    uneven=st.sampled_from(["join", "drop", "pad"]),
    weighted=st.booleans(),
    data=st.data(),
)
def test_synchronous_batches_of_any_parts(
    sizes: list[int], batch: int, uneven: Any, weighted: bool, data: st.DataObject
) -> None:
    """Against lists of samples: the parts cut to the smallest or repeated up to the largest, in batches."""
    size, total = len(sizes), sum(sizes)
    run = RunSpec.model_validate({"strategy": "all_reduce", "nodes": size, "batch_size": batch})
    shared = Parts(split(total), run, RngFactory(0), size)
    shared.sizes, shared.batch = tuple(sizes), batch
    weights = np.random.default_rng(1).integers(0, 3, total).astype(float) if weighted else None
    shared.weights = weights
    length = {"join": None, "drop": min(sizes), "pad": max(sizes)}[uneven]
    ranks = [loader(rank, size, shared=shared, batch_size=batch) for rank in range(size)]
    orders = [[*one.order(2)] for one in ranks]
    if length is not None:
        orders = [(order * length)[:length] for order in orders]
    steps = range(0, max(map(len, orders)), batch)
    expected = [[order[at : at + batch] for at in steps] for order in orders]
    skip = data.draw(st.integers(0, len(steps)))
    assert [sorted(part) for part in ranks[0].samples_by_part(2, uneven)] == [*map(sorted, orders)]
    for rank, one in enumerate(ranks):
        found = [*one.synchronous_batches(2, uneven, skip)]
        assert [[*indices] for _, indices in found] == expected[rank][skip:]
        for number, (each, indices) in enumerate(found, start=skip):
            in_step = [part[number] for part in expected]
            assert each.in_step == tuple(map(len, in_step)) == one.in_step(2, number + 1, uneven)
            assert (each.step, each.steps, each.samples) == (number + 1, len(steps), len(indices))
            assert len(each.targets) == max(1, len(indices))  # one that does not count
            counted = [len(part) if weights is None else weights[part].sum() for part in in_step]
            share = counted[rank] / sum(counted) if sum(counted) else np.nan
            assert each.share == pytest.approx(share, nan_ok=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "partitioner",
    ["stratified", {"name": "feature", "reshuffle": True}, {"name": "feature", "distortion": "rotation"}],
)
def test_nodes_together_load_each_sample_once_per_epoch(method: str, partitioner: Any) -> None:
    """With image and label of each as the partitioner changes it, in the memory of the batch alone."""
    train = split()
    ranks = [loader(rank, train=train, partitioner=partitioner) for rank in range(3)]
    for epoch in (1, 2):
        loaded: list[int] = []
        for rank, one in enumerate(ranks):
            own, each = one.parts(epoch)[rank], one._spec.partitioner
            rng = RngFactory(0).generator("distort", rank, epoch if each.reshuffle else 0)
            images = np.zeros_like(train.inputs)
            images[own] = each.transform_images(train.inputs[own], rank, 3, rng)
            if partitioner != "stratified":
                assert np.array_equal(images[own], train.inputs[own]) is (rank == 0)
            for batch, indices in batches(one, method, epoch):
                count = len(indices)  # or 0, with a sample that does not count
                np.testing.assert_array_equal(batch.inputs[:count].numpy(), images[indices])
                np.testing.assert_array_equal(batch.targets[:count].numpy(), train.labels[indices])
                assert (batch.inputs.dtype, batch.targets.dtype) == (torch.float32, torch.int64)
                assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
                loaded += [*indices]
                batch.inputs.zero_()
        assert sorted(loaded) == list(range(SAMPLES))
    np.testing.assert_array_equal(train.inputs, split().inputs)


def test_order_depends_on_rank_epoch_and_seed() -> None:
    one = loader(0, 2)
    first = one.order(1).tolist()
    assert first == loader(0, 2).order(1).tolist() != sorted(first)
    assert sorted(one.order(2)) == sorted(first)
    assert first not in (one.order(2).tolist(), loader(0, 2, seed=1).order(1).tolist())
    assert one.order(1).tolist() == first  # independent of the calls in between
    orders = [loader(rank, 5).order(1)[:20] for rank in range(5)]
    assert len({tuple(np.argsort(order)) for order in orders}) == 5  # different permutations


def test_split_is_equal_on_all_ranks_and_changes_if_it_is_reshuffled() -> None:
    for reshuffle in (False, True):
        fields = {"partitioner": {"name": "random_partition", "reshuffle": reshuffle}}
        one, other = ([loader(rank, **fields).parts(epoch) for epoch in (1, 2, 1)] for rank in (0, 2))
        first, second, again = ([part.tolist() for part in parts] for parts in one)
        assert (first != second) is reshuffle
        assert again == first  # repeatable
        assert [part.tolist() for part in other[1]] == second


def test_augmentation_draws_depend_on_seed_rank_epoch_and_step() -> None:
    """They are the same in both kinds of batches, and after a resumption."""

    def drawn(epoch: int, skip: int, method: str, rank: int = 0, seed: int = 0) -> list[float]:
        one = loader(rank, 2, seed, augment=lambda images, rng: images * 0 + rng.random())
        return [batch.inputs[0, 0, 0, 0].item() for batch, _ in getattr(one, method)(epoch, skip=skip)]

    first, second = (drawn(epoch, 0, "batches") for epoch in (1, 2))
    for method in METHODS:
        assert drawn(1, 0, method) == first
        assert drawn(2, 4, method) == second[4:]
        others = drawn(1, 0, method, rank=1) + drawn(1, 0, method, seed=1)
        assert len({*first, *second, *others}) == 4 * 6
    generator = RngFactory(0).generator("augment", 0, 1, 1)  # steps are counted from 1
    assert first[0] == pytest.approx(generator.random())
