"""Cutting a list of blocks into parts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trainer.models.split_points import balanced, parts_of, validation_error

NAMES = ["a", "b", "c", "d", "e"]


def test_parts_begin_at_the_cuts() -> None:
    assert parts_of(NAMES, ["c"]) == [["a", "b"], ["c", "d", "e"]]
    assert parts_of(NAMES, ["b", "e"]) == [["a"], ["b", "c", "d"], ["e"]]
    assert parts_of(NAMES, []) == [NAMES]


@pytest.mark.parametrize(
    ("split_points", "parts", "reason"),
    [
        (["c"], 2, None),
        (None, 5, None),
        (["b", "c", "d", "e"], 5, None),
        (None, 6, "6 parts are more than its 5 blocks: a, b, c, d, e"),
        (["x"], 2, "it cannot be cut before 'x'; allowed: b, c, d, e"),
        (["a"], 2, "it cannot be cut before 'a'; allowed: b, c, d, e"),
        (["c", "b"], 3, "cuts [c, b] are not in the order of its blocks, each once: b, c, d, e"),
        (["c", "c"], 3, "cuts [c, c] are not in the order of its blocks, each once: b, c, d, e"),
        (["c"], 3, "3 parts take 2 of its cuts, not 1: b, c, d, e"),
    ],
)
def test_what_does_not_fit_is_said(split_points: list[str] | None, parts: int, reason: str | None) -> None:
    assert validation_error(NAMES, split_points, parts) == reason


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_balance_is_the_best_of_all_cuts(parts: int) -> None:
    rng = np.random.default_rng(parts)
    names = [f"block{at}" for at in range(7)]
    for _ in range(30):
        costs = rng.exponential(size=7).tolist()

        def loads(split_points: tuple[str, ...], costs: list[float] = costs) -> list[float]:
            return [
                sum(costs[names.index(name)] for name in part) for part in parts_of(names, split_points)
            ]

        best = min(max(loads(split_points)) for split_points in combinations(names[1:], parts - 1))
        assert max(loads(tuple(balanced(names, costs, parts)))) == pytest.approx(best)


def test_of_equally_dear_cuts_the_evenest_is_taken() -> None:
    # The last block is the dearest part however the others are cut.
    assert balanced(["a", "b", "c", "d", "e"], [1, 1, 1, 1, 9], 3) == ["c", "e"]
    assert balanced(["a", "b"], [0, 0], 2) == ["b"]
