"""Mistakes in split points: the blocks of stages, what is refused, and which division is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from trainer.models.base import ParallelPair
from trainer.models.mlp import Mlp
from trainer.models.split_points import (
    LINK_BYTES_PER_S,
    balanced_split_points,
    possible_starts,
    stage_blocks,
    validation_error,
)

NAMES = ["a", "b", "c", "d", "e"]
PAIRS = [ParallelPair("b.first", "d.second", 4)]


def test_stages_begin_at_the_split_points() -> None:
    assert stage_blocks(NAMES, ["c"]) == [["a", "b"], ["c", "d", "e"]]
    assert stage_blocks(NAMES, ["b", "e"]) == [["a"], ["b", "c", "d"], ["e"]]
    assert stage_blocks(NAMES, []) == [NAMES]
    assert possible_starts(NAMES, PAIRS) == ["a", "b", "e"]
    for split_points, stages in ((["c"], 2), (None, 5), (["b", "c", "d", "e"], 5), ([], 1)):
        assert validation_error(NAMES, split_points, stages) is None
    assert validation_error(NAMES, ["b", "e"], 3, PAIRS) is None


@pytest.mark.parametrize(
    ("split_points", "stages", "facts"),
    [
        (None, 6, ["6 stages", "5 blocks", "a, b, c, d, e"]),
        (["x"], 2, ["'x'", "allowed: b, c, d, e"]),
        (["a"], 2, ["'a'", "allowed: b, c, d, e"]),  # the first stage always begins there
        (["c", "b"], 3, ["[c, b]", "order", "b, c, d, e"]),
        (["c", "c"], 3, ["[c, c]", "once", "b, c, d, e"]),
        (["c"], 3, ["3", "1", "b, c, d, e"]),
        (["c"], 1, ["1", "0", "b, c, d, e"]),
    ],
    ids=str,
)
def test_invalid_split_points(split_points: list[str] | None, stages: int, facts: list[str]) -> None:
    error = validation_error(NAMES, split_points, stages) or ""
    assert [fact for fact in facts if fact not in error] == []


def test_pairs_of_layers_stay_in_one_stage() -> None:
    assert "4 stages are more than the 3" in (validation_error(NAMES, None, 4, PAIRS) or "")
    for name in ("c", "d"):
        error = validation_error(NAMES, [name], 2, PAIRS) or ""
        assert (
            f"split point {name} divides the tensor-parallel pair b.first, d.second; allowed: b, e" in error
        )
    pairs = Mlp(hidden=[7, 8, 9]).tensor_parallel_pairs
    assert pairs == [ParallelPair("fc1", "fc2", 7), ParallelPair("fc3", "output", 9)]


def slowest(seconds: Sequence[float], sent: Sequence[float], starts: Sequence[int]) -> tuple[float, float]:
    """The time of the slowest stage, and the sum of squared times, which decides among equals."""
    bounds = [0, *starts, len(seconds)]
    times = []
    for first, end in pairwise(bounds):
        crossing = [at for at in (first - 1, end - 1) if 0 <= at < len(seconds) - 1]
        times.append(sum(seconds[first:end]) + sum(sent[at] for at in crossing))
    return max(times), sum(time**2 for time in times)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("paired", [False, True])
def test_balanced_split_points_are_the_best_of_all(stages: int, paired: bool) -> None:
    rng, count = np.random.default_rng(stages), 7
    names = [f"block{at}" for at in range(count)]
    pairs = [ParallelPair("block2.up", "block4.down", 1)] if paired else []
    allowed = [names.index(name) for name in possible_starts(names, pairs)[1:]]
    for _ in range(40):
        # Few different values, so that many divisions have equally slow stages.
        seconds, sent = rng.integers(0, 4, count).tolist(), rng.integers(0, 3, count).tolist()
        found = balanced_split_points(
            names, seconds, [each * LINK_BYTES_PER_S for each in sent], stages, pairs
        )
        best = min(slowest(seconds, sent, starts) for starts in combinations(allowed, stages - 1))
        assert slowest(seconds, sent, [names.index(name) for name in found]) == best
