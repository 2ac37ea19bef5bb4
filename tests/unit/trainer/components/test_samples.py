"""Mistakes in which samples of a dataset are tried: classes that are left out, distances, batches."""

from __future__ import annotations

import numpy as np

from trainer.components.samples import even, spread, taken


def test_every_class_occurs_whatever_the_order_and_the_sizes() -> None:
    for counts in ([100, 100, 100], [5000, 1, 1], [1, 5000, 2], [1] * 17, [300], [3, 2]):
        in_order = np.repeat(np.arange(len(counts)), counts)
        for labels in (in_order, np.random.default_rng(0).permutation(in_order)):
            chosen = spread(labels, 17)
            assert {*labels[chosen]} == {*labels}
            assert len({*chosen}) == len(chosen) == min(17, len(labels))
            assert labels[chosen].tolist() == sorted(labels[chosen])
    many = np.repeat(np.arange(100), 3)[::-1]
    of_many = many[spread(many, 17)]
    assert (of_many[0], of_many[-1], len({*of_many})) == (0, 99, 17)


def test_other_targets_reach_from_the_lowest_to_the_highest() -> None:
    for shape in ((1000,), (1000, 1), (1000, 2, 3)):
        targets = np.linspace(0, 1, int(np.prod(shape))).reshape(shape)[::-1]
        chosen = targets[spread(targets, 17)].reshape(17, -1).mean(axis=1)
        np.testing.assert_allclose(np.diff(chosen), 1 / 16, rtol=0.05)


def test_a_batch_is_taken_at_equal_distance() -> None:
    assert taken(17, 2).tolist() == [0, 8]
    assert taken(17, 2, start=16).tolist() == [16, 7]
    assert {*taken(2, 5).tolist()} == {0, 1}
    assert even(0, 3).tolist() == even(5, 0).tolist() == []
