"""Split points: dividing a chain of blocks into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from trainer.models.lenet import LeNet
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


def stage_times(
    names: list[str], seconds: list[float], output_bytes: list[float], split_points: Sequence[str]
) -> list[float]:
    """The seconds of each stage: its blocks, its output and the gradient of its input, at 1 Gbit/s."""
    stages = stage_blocks(names, split_points)
    times = []
    for at, stage in enumerate(stages):
        sent = [names.index(stage[-1])] if at < len(stages) - 1 else []
        sent += [names.index(stages[at - 1][-1])] if at else []
        computing = sum(seconds[names.index(name)] for name in stage)
        times.append(computing + sum(output_bytes[block] for block in sent) / 125e6)
    return times


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_balanced_split_points_are_the_best_of_all(stages: int) -> None:
    rng = np.random.default_rng(stages)
    names = [f"block{at}" for at in range(7)]
    for _ in range(60):
        # Few different values, so that many divisions have equally slow stages.
        seconds, output_bytes = rng.integers(0, 4, 7).astype(float), 125e6 * rng.integers(0, 3, 7)
        costs = names, seconds.tolist(), output_bytes.astype(float).tolist()

        def quality(split_points: Sequence[str], costs: Any = costs) -> tuple[float, float]:
            times = stage_times(*costs, split_points)
            return max(times), sum(time**2 for time in times)

        best = min(quality(split_points) for split_points in combinations(names[1:], stages - 1))
        assert quality(balanced_split_points(*costs, stages)) == best


def test_ties_are_broken_by_the_sum_of_squares() -> None:
    # The last block is the most expensive stage wherever the others are split.
    assert balanced_split_points(NAMES, [1, 1, 1, 1, 9], [0] * 5, 3) == ["c", "e"]
    assert balanced_split_points(["a", "b"], [0, 0], [0, 0], 2) == ["b"]


# As `model lenet --dataset mnist --batch-size 8` reports them: milliseconds, and kB per sample.
LENET_MS = [2.28, 0.692, 0.22, 3.9, 0.186, 0.124, 0.32, 0.145, 0.185, 0.303, 0.124, 0.246, 0.32]
LENET_KB = [23.04, 5.76, 5.76, 7.68, 1.92, 1.92, 1.92, 0.48, 0.48, 0.24, 0.24, 0.04, 0.04]


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_lenet_is_not_split_before_its_first_pooling(stages: int) -> None:
    seconds, output_bytes = [ms / 1e3 for ms in LENET_MS], [kb * 8e3 for kb in LENET_KB]
    assert "pool1" not in balanced_split_points(LeNet().names, seconds, output_bytes, stages)
