"""Where a model is cut: its blocks, in order, as the parts that ranks hold. Pure; imports no torch.

A cut is named by the block that begins the next part: cuts ["flatten"] make two parts of lenet, its
convolutions and its fully connected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def validation_error(names: Sequence[str], split_points: Sequence[str] | None, parts: int) -> str | None:
    """Why blocks of these names cannot be cut into so many parts, or None. cuts: None, to be chosen."""
    if parts > len(names):
        return f"{parts} parts are more than its {len(names)} blocks: {', '.join(names)}"
    if split_points is None:
        return None
    allowed = ", ".join(names[1:])
    if unknown := [cut for cut in split_points if cut not in names[1:]]:
        return f"it cannot be cut before {', '.join(map(repr, unknown))}; allowed: {allowed}"
    if list(split_points) != [name for name in names if name in split_points]:
        return f"cuts [{', '.join(split_points)}] are not in the order of its blocks, each once: {allowed}"
    if len(split_points) != parts - 1:
        wanted = "1 part takes no cut" if parts == 1 else f"{parts} parts take {parts - 1} of its cuts"
        return f"{wanted}, not {len(split_points)}: {allowed}"
    return None


def parts_of(names: Sequence[str], split_points: Sequence[str]) -> list[list[str]]:
    """The blocks of each part, in order; the cuts must fit."""
    starts = [0, *(names.index(cut) for cut in split_points), len(names)]
    return [list(names[start:end]) for start, end in pairwise(starts)]


def balanced(names: Sequence[str], costs: Sequence[float], parts: int) -> list[str]:
    """The cuts whose dearest part is cheapest; of equal ones, those with the least sum of squares.

    costs: of each block, in any unit. Exact, by dynamic programming over where the last part begins.
    """
    sums = [0.0, *accumulate(costs)]
    # Of the first `end` blocks, in as many parts as rounds so far: dearest part, sum of squares, starts.
    best: dict[int, tuple[float, float, tuple[int, ...]]]
    best = {end: (sums[end], sums[end] ** 2, (0,)) for end in range(1, len(names) + 1)}
    for part in range(1, parts):
        best = {
            end: min(
                (
                    max(best[start][0], sums[end] - sums[start]),
                    best[start][1] + (sums[end] - sums[start]) ** 2,
                    (*best[start][2], start),
                )
                for start in range(part, end)
            )
            for end in range(part + 1, len(names) + 1)
        }
    return [names[start] for start in best[len(names)][2][1:]]
