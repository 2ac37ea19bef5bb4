"""Split points: where the chain of blocks is divided into pipeline stages. Pure, without torch.

A split point is the name of the first block of a stage. Split points ["flatten"] divide lenet into two
stages: its convolutions and its fully connected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.models.base import ParallelPair

LINK_BYTES_PER_S = 1e9 / 8  # of the links that split points are chosen for


def validation_error(
    names: Sequence[str],
    split_points: Sequence[str] | None,
    stages: int,
    pairs: Sequence[ParallelPair] = (),
) -> str | None:
    """Return why the blocks cannot be divided into `stages` at these split points, or None.

    Args:
        split_points: None if they are still to be chosen.
        pairs: the pairs of layers that must be in one stage.
    """
    starts = possible_starts(names, pairs)
    allowed = ", ".join(starts[1:])
    if stages > len(names):
        return f"{stages} stages are more than the {len(names)} blocks: {', '.join(names)}"
    if stages > len(starts):
        return (
            f"{stages} stages are more than the {len(starts)} that leave each tensor-parallel pair in one "
            f"stage; possible split points: {allowed or 'none'}"
        )
    if split_points is None:
        return None
    if unknown := [name for name in split_points if name not in names[1:]]:
        return f"unknown split points {', '.join(map(repr, unknown))}; allowed: {allowed}"
    if list(split_points) != [name for name in names if name in split_points]:
        given = ", ".join(split_points)
        return f"split points [{given}] are not in the order of the blocks, each once: {allowed}"
    if len(split_points) != stages - 1:
        return f"stages: {stages}, split points: {len(split_points)}, needed: {stages - 1} of {allowed}"
    for pair in pairs:
        for name in split_points:
            if name in _after_start(names, pair):
                return (
                    f"split point {name} divides the tensor-parallel pair {pair.column}, {pair.row}; "
                    f"allowed: {allowed}"
                )
    return None


def possible_starts(names: Sequence[str], pairs: Sequence[ParallelPair]) -> list[str]:
    """Return the blocks with which a stage can start, if both layers of each pair are in one stage."""
    excluded = {name for pair in pairs for name in _after_start(names, pair)}
    return [name for name in names if name not in excluded]


def _after_start(names: Sequence[str], pair: ParallelPair) -> Sequence[str]:
    """The blocks of a pair of layers but the first. The path of a layer starts with its block."""
    column, row = (names.index(path.split(".")[0]) for path in (pair.column, pair.row))
    return names[column + 1 : row + 1]


def stage_blocks(names: Sequence[str], split_points: Sequence[str]) -> list[list[str]]:
    """Return the block names of every stage, in order. The split points must be valid."""
    starts = [0, *(names.index(name) for name in split_points), len(names)]
    return [list(names[start:end]) for start, end in pairwise(starts)]


def balanced_split_points(
    names: Sequence[str],
    seconds: Sequence[float],
    output_bytes: Sequence[float],
    stages: int,
    pairs: Sequence[ParallelPair] = (),
) -> list[str]:
    """Return the split points that minimise the time of the slowest stage.

    A stage computes its blocks, and sends its output and the gradient of its input over a link of
    `LINK_BYTES_PER_S`. Among equals, the sum of squared stage times decides. The result is exact: dynamic
    programming over the first block of the last stage.

    Args:
        names: block names in forward order.
        seconds: the time of the forward and backward pass of each block, for a batch.
        output_bytes: the size of the output of each block, for the same batch.
        stages: how many stages to form, at most as many as `possible_starts`.
        pairs: the pairs of layers that must be in one stage.
    """
    parts = stage_blocks(names, possible_starts(names, pairs)[1:])
    ends_of_parts = [*accumulate(map(len, parts))]
    seconds = [sum(seconds[end - len(part) : end]) for part, end in zip(parts, ends_of_parts, strict=True)]
    output_bytes = [output_bytes[end - 1] for end in ends_of_parts]
    names = [part[0] for part in parts]
    sums = [0.0, *accumulate(seconds)]
    # Of what is sent in each direction between a block and the one before; nothing crosses the two ends.
    sending = [0.0, *(each / LINK_BYTES_PER_S for each in output_bytes[:-1]), 0.0]

    def stage_s(start: int, end: int) -> float:
        return sending[start] + (sums[end] - sums[start]) + sending[end]

    ends = range(len(sums))
    # slowest[end]: the time of the slowest stage if the first `end` blocks are divided at best.
    slowest = [0.0, *[inf] * len(names)]
    for _ in range(stages):
        slowest = [
            min((max(slowest[start], stage_s(start, end)) for start in range(end)), default=inf)
            for end in ends
        ]
    # best[end]: of the divisions without a slower stage, the smallest sum of squared times, and the starts.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(inf, ())] * len(names)]
    for _ in range(stages):
        best = [
            min(
                (
                    (best[start][0] + stage_s(start, end) ** 2, (*best[start][1], start))
                    for start in range(end)
                    if stage_s(start, end) <= slowest[-1]
                ),
                default=(inf, ()),
            )
            for end in ends
        ]
    return [names[start] for start in best[-1][1][1:]]
