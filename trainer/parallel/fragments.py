"""Fragments of a model: parts of its flat weights that are exchanged one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.training.replica import Replica
from trainer.training.trained import trained_parameters


@dataclass(frozen=True)
class Fragment:
    """A fragment of a model.

    Attributes:
        places: from where to where it is in the flat weights.
        parameters: how many of its weights are parameters; buffers follow them.
    """

    places: list[tuple[int, int]]
    parameters: int

    def of(self, weights: Tensor) -> Tensor:
        """Its part of the flat weights of a replica."""
        return torch.cat([weights[start:end] for start, end in self.places])

    def put(self, own: Tensor, replica: Replica) -> None:
        """Replace its part of the weights of a replica."""
        weights, at = replica.weights(), 0
        for start, end in self.places:
            weights[start:end] = own[at : at + end - start]
            at += end - start
        replica.set_weights(weights)


def fragments(replica: Replica, count: int, order: Literal["strided", "sequential"]) -> list[Fragment]:
    """Divide a model into fragments of whole blocks. Buffers belong to the last one.

    Raises ValueError if there are fewer blocks with parameters.
    """
    blocks = [*_blocks(replica.model).values()]
    if count > len(blocks):
        raise ValueError(f"fragments is {count}; allowed: 1 to {len(blocks)}, the blocks with parameters")
    if order == "strided":
        chosen = [blocks[number::count] for number in range(count)]
    else:
        bounds = [len(blocks) * number // count for number in range(count + 1)]
        chosen = [blocks[bounds[number] : bounds[number + 1]] for number in range(count)]
    n, end = replica.parameter_count, len(replica.weights())
    found = []
    for number, own in enumerate(chosen):
        parameters = sum(end - start for start, end in own)
        buffers = [(n, end)] if number == count - 1 and end > n else []
        found.append(Fragment([*own, *buffers], parameters))
    return found


def _blocks(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Where the trained parameters of each block are in the flat weights; shared ones are the first's."""
    block_of = {id(each): name.split(".")[0] for name, each in model.named_parameters()}
    found: dict[str, tuple[int, int]] = {}
    end = 0
    for parameter in trained_parameters(model):
        block, start = block_of[id(parameter)], end
        end += parameter.numel()
        found[block] = found.get(block, (start, start))[0], end
    return found
