"""The part of the command `model` that shows what each rank of a mesh holds and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.sweeps.imports import Imports, has_users
from orchestrator.terminal import aligned
from trainer.core.whole_number import whole_number
from trainer.models.split_points import stage_blocks
from trainer.spec.node_speed import MAX_NODES

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec
    from trainer.strategies.hybrid import Hybrid

_HEADINGS = (
    ("", "rank"),
    ("po-", "sition"),
    ("", "blocks"),
    ("para-", "meters"),
    ("data", "group"),
    ("pipeline", "group"),
    ("tensor", "group"),
)
_ALONE = "·"
_EXCHANGED = {
    "data": "an all-reduce of the gradient of the rank's parameters, in each step",
    "pipeline": "activations to the next stage, and their gradients back, of each micro-batch",
    "tensor": "in each pair of layers and each micro-batch, an all-reduce of activations in the forward "
    "pass and one of their gradients in the backward pass",
}


def degrees(text: str) -> dict[str, int]:
    """The degrees of `--mesh`, e.g. `data=2,tensor=2`. Raises InputError."""
    found: dict[str, int] = {}
    for word in text.split(","):
        name, _, degree = word.strip().partition("=")
        number = whole_number(degree, MAX_NODES)
        if not name or not number or name in found:
            raise InputError(
                f"--mesh {text}: {word.strip()!r} is not allowed; allowed: each dimension once, with the "
                "number of ranks in it, e.g. data=2,pipeline=2,tensor=2"
            )
        found[name] = number
    return found


def mesh_lines(
    run: RunSpec, strategy: Hybrid, split_points: Sequence[str], width: int, imports: Imports
) -> list[str]:
    """A row for each rank, and what the groups exchange.

    Args:
        run: of this strategy.
        split_points: first block of every stage but the first.
        imports: runs users' components.
    """
    mesh = strategy.mesh_of(run.world_size)
    stages = stage_blocks(run.model.names, split_points)
    if has_users(run):
        parameters = imports.figures("ranks", run, split_points).rank_parameters
        if len(parameters) != mesh.size:
            raise InputError(f"the parameters of {len(parameters)} ranks are known, not of {mesh.size}")
    else:
        parameters = strategy.parameters_by_rank(run, split_points)
    rows = [
        (
            str(rank),
            ",".join(map(str, mesh.position(rank))),
            _span(stages[mesh.position(rank).pipeline]),
            f"{parameters[rank]:,}",
            *(_group(mesh.group(rank, dimension)) for dimension in mesh.dimensions),
        )
        for rank in range(mesh.size)
    ]
    exchanged = [
        f"{dimension}: {_EXCHANGED[dimension]}"
        for dimension in mesh.dimensions
        if mesh.degree(dimension) > 1
    ]
    return [
        *aligned([*zip(*_HEADINGS, strict=True), *rows], left=2),
        "",
        *wrap("Position: replica, stage, shard. The ranks of a group exchange:", width),
        *(
            line
            for each in exchanged
            for line in wrap(each, width, initial_indent="  ", subsequent_indent="    ")
        ),
    ]


def _span(names: Sequence[str]) -> str:
    """`embedding … block2`."""
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _group(ranks: range) -> str:
    """`0 4`, or the first and the last of many ranks."""
    if len(ranks) == 1:
        return _ALONE
    return f"{ranks[0]} {ranks[1]}" if len(ranks) == 2 else f"{ranks[0]} … {ranks[-1]}"
