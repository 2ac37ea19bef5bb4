"""Split points: dividing a chain of blocks into stages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trainer.models.split_points import balanced_split_points, stage_blocks, validation_error

NAMES = ["a", "b", "c", "d", "e"]


def test_stages_begin_at_the_split_points() -> None:
    assert stage_blocks(NAMES, ["c"]) == [["a", "b"], ["c", "d", "e"]]
    assert stage_blocks(NAMES, ["b", "e"]) == [["a"], ["b", "c", "d"], ["e"]]
    assert stage_blocks(NAMES, []) == [NAMES]


@pytest.mark.parametrize(
    ("split_points", "stages"), [(["c"], 2), (None, 5), (["b", "c", "d", "e"], 5), ([], 1)]
)
def test_valid_split_points(split_points: list[str] | None, stages: int) -> None:
    assert validation_error(NAMES, split_points, stages) is None


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
)
def test_invalid_split_points(split_points: list[str] | None, stages: int, facts: list[str]) -> None:
    error = validation_error(NAMES, split_points, stages)
    assert error is not None
    assert [fact for fact in facts if fact not in error] == []


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_balanced_split_points_minimise_the_largest_stage(stages: int) -> None:
    rng = np.random.default_rng(stages)
    names = [f"block{at}" for at in range(7)]
    for _ in range(30):
        costs = rng.exponential(size=7).tolist()

        def loads(split_points: tuple[str, ...], costs: list[float] = costs) -> list[float]:
            return [
                sum(costs[names.index(name)] for name in stage)
                for stage in stage_blocks(names, split_points)
            ]

        best = min(max(loads(split_points)) for split_points in combinations(names[1:], stages - 1))
        found = balanced_split_points(names, costs, stages)
        assert max(loads(tuple(found))) == pytest.approx(best)


def test_ties_are_broken_by_the_sum_of_squares() -> None:
    # The last block is the most expensive stage wherever the others are split.
    assert balanced_split_points(["a", "b", "c", "d", "e"], [1, 1, 1, 1, 9], 3) == ["c", "e"]
    assert balanced_split_points(["a", "b"], [0, 0], 2) == ["b"]
