"""Split points: where the chain of blocks is divided into pipeline stages. Pure, without torch.

A split point is the name of the first block of a stage. Split points ["flatten"] divide lenet into two
stages: its convolutions and its fully connected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def validation_error(names: Sequence[str], split_points: Sequence[str] | None, stages: int) -> str | None:
    """Return why the blocks cannot be divided into `stages` at these split points, or None.

    split_points: None if they are still to be chosen.
    """
    if stages > len(names):
        return f"{stages} stages are more than the {len(names)} blocks: {', '.join(names)}"
    if split_points is None:
        return None
    allowed = ", ".join(names[1:])
    if unknown := [name for name in split_points if name not in names[1:]]:
        return f"unknown split points {', '.join(map(repr, unknown))}; allowed: {allowed}"
    if list(split_points) != [name for name in names if name in split_points]:
        given = ", ".join(split_points)
        return f"split points [{given}] are not in the order of the blocks, each once: {allowed}"
    if len(split_points) != stages - 1:
        return f"stages: {stages}, split points: {len(split_points)}, needed: {stages - 1} of {allowed}"
    return None


def stage_blocks(names: Sequence[str], split_points: Sequence[str]) -> list[list[str]]:
    """Return the block names of every stage, in order. The split points must be valid."""
    starts = [0, *(names.index(name) for name in split_points), len(names)]
    return [list(names[start:end]) for start, end in pairwise(starts)]


def balanced_split_points(names: Sequence[str], costs: Sequence[float], stages: int) -> list[str]:
    """Return the split points that minimise the cost of the most expensive stage.

    Among equals, the sum of squared stage costs decides. The result is exact: dynamic programming over the
    first block of the last stage.

    Args:
        names: block names in forward order, at least as many as stages.
        costs: of each block, in any unit.
        stages: how many stages to form.
    """
    sums = [0.0, *accumulate(costs)]
    # best[end]: the best division of the first `end` blocks into the current number of stages, as
    # (cost of the most expensive stage, sum of squared costs, start of every stage).
    best: dict[int, tuple[float, float, tuple[int, ...]]]
    best = {end: (sums[end], sums[end] ** 2, (0,)) for end in range(1, len(names) + 1)}
    for stage in range(1, stages):
        best = {
            end: min(
                (
                    max(best[start][0], sums[end] - sums[start]),
                    best[start][1] + (sums[end] - sums[start]) ** 2,
                    (*best[start][2], start),
                )
                for start in range(stage, end)
            )
            for end in range(stage + 1, len(names) + 1)
        }
    return [names[start] for start in best[len(names)][2][1:]]
