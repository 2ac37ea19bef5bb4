"""Mistakes in split points: the blocks of stages, what is refused, and which division is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from trainer.models.base import ParallelPair
from trainer.models.split_points import (
    balanced_split_points,
    possible_starts,
    stage_blocks,
    validation_error,
)

NAMES = ["a", "b", "c", "d", "e"]
PAIRS = [ParallelPair("b.first", "d.second", 4)]


def test_split_points_are_names_in_order_outside_of_pairs() -> None:
    assert stage_blocks(NAMES, ["b", "e"]) == [["a"], ["b", "c", "d"], ["e"]]
    for points, stages, pairs, error in (
        (["b", "c", "d", "e"], 5, [], ""),
        (["b", "e"], 3, PAIRS, ""),
        (["a"], 2, [], "unknown split points 'a'; allowed: b, c, d, e"),  # the first stage begins there
        (["c", "b"], 3, [], "split points [c, b] are not in the order"),
        (["c", "c"], 3, [], "split points [c, c] are not in the order of the blocks, each once"),
        (None, 4, PAIRS, "4 stages are more than the 3 "),
        (["d"], 2, PAIRS, "split point d divides the tensor-parallel pair b.first, d.second; allowed: b"),
    ):
        found = validation_error(NAMES, points, stages, pairs) or ""
        assert found.startswith(error)
        assert bool(found) == bool(error)


def slowest(seconds: Sequence[float], sent: Sequence[float], starts: Sequence[int]) -> tuple[float, float]:
    """The time of the slowest stage, and the sum of squared times, which decides among equals."""
    times = []
    for first, end in pairwise([0, *starts, len(seconds)]):
        crossing = [at for at in (first - 1, end - 1) if 0 <= at < len(seconds) - 1]
        times.append(sum(seconds[first:end]) + sum(sent[at] for at in crossing))
    return max(times), sum(time**2 for time in times)


@pytest.mark.parametrize("pairs", [[], [ParallelPair("block2.up", "block4.down", 1)]], ids=["", "pair"])
def test_balanced_split_points_are_the_best_of_all(pairs: list[ParallelPair]) -> None:
    rng, names = np.random.default_rng(0), [f"block{at}" for at in range(7)]
    allowed = [names.index(name) for name in possible_starts(names, pairs)[1:]]
    assert len(allowed) == (4 if pairs else 6)
    for stages in (1, 2, 3, 5) * 30:
        # Few different values, so that many divisions have equally slow stages.
        seconds, sent = rng.integers(0, 4, 7).tolist(), rng.integers(0, 3, 7).tolist()
        sizes = [each * 125e6 for each in sent]  # a second each, at a gigabit per second
        found = balanced_split_points(names, seconds, sizes, stages, pairs)
        best = min(slowest(seconds, sent, starts) for starts in combinations(allowed, stages - 1))
        assert slowest(seconds, sent, [names.index(name) for name in found]) == best
