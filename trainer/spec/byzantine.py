"""Byzantine nodes of a run: which ones they are, and how they attack. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from trainer.attacks.base import Attack
from trainer.spec.node_speed import MAX_NODES, distinct_nodes
from trainer.spec.registries import ATTACKS

NodeNumber = Annotated[int, Field(ge=-MAX_NODES, lt=MAX_NODES)]


class Byzantine(BaseModel):
    """Byzantine nodes. All of them make the same attack."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    nodes: list[NodeNumber] = Field(
        min_length=1, max_length=MAX_NODES, description="numbers of the nodes, from 0; -1 is the last one"
    )
    attack: Annotated[Attack, ATTACKS] = Field(description="what they do")

    def numbers(self, nodes: int) -> list[int]:
        """The numbers of the Byzantine ones of so many nodes, ascending. Raises ValueError."""
        return sorted(distinct_nodes(self.nodes, nodes))


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: `3`, `3 and 4`, `3, 5 to 7 and 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))
    ]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def keys_of_byzantine(form: object, *path: str | int) -> list[str]:
    """Keys allowed in Byzantine nodes, written as `form`, or in the part of them at `path`."""
    if path and isinstance(form, dict):
        return ATTACKS.parameters(form["attack"]) or ["no parameters"]
    return [*Byzantine.model_fields]
