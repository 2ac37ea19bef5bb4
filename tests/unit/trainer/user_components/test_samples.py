"""Which samples of a dataset are tried."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.user_components.samples import even, spread, taken

SORTED = np.repeat(np.arange(3), 100)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize(
    "counts", [[100, 100, 100], [5000, 1, 1], [1, 5000, 2], [1] * 17, [300], [3, 2]], ids=str
)
def test_every_class_occurs_whatever_the_order_and_the_sizes(counts: list[int], order: str) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    if order == "shuffled":
        labels = np.random.default_rng(0).permutation(labels)
    chosen = spread(labels, 17)
    assert {*labels[chosen]} == {*labels}
    assert len({*chosen}) == len(chosen) == min(17, len(labels))
    assert labels[chosen].tolist() == sorted(labels[chosen])


def test_of_many_classes_some_occur_from_the_first_to_the_last() -> None:
    labels = np.repeat(np.arange(100), 3)[::-1]
    chosen = labels[spread(labels, 17)]
    assert (chosen[0], chosen[-1], len({*chosen})) == (0, 99, 17)


@pytest.mark.parametrize("shape", [(1000,), (1000, 1), (1000, 2, 3)])
def test_other_targets_reach_from_the_lowest_to_the_highest(shape: tuple[int, ...]) -> None:
    targets = np.linspace(0, 1, int(np.prod(shape))).reshape(shape)[::-1]
    chosen = targets[spread(targets, 17)].reshape(17, -1).mean(axis=1)
    np.testing.assert_allclose(np.diff(chosen), 1 / 16, rtol=0.05)


def test_a_batch_is_taken_at_equal_distance() -> None:
    assert taken(17, 2).tolist() == [0, 8]
    assert taken(17, 2, start=16).tolist() == [16, 7]
    assert {*SORTED[spread(SORTED, 17)][taken(17, 3)]} == {0, 1, 2}
    assert {*taken(2, 5).tolist()} == {0, 1}
    assert even(0, 3).tolist() == even(5, 0).tolist() == []
