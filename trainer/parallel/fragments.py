"""Fragments of a model: parts of its flat weights that are exchanged one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.comm.nonblocking import Request
from trainer.compression.base import ErrorFeedback
from trainer.training.replica import Replica
from trainer.training.trained import trained_parameters


@dataclass
class Fragment:
    """A fragment, as one rank has it.

    Attributes:
        places: from where to where it is in the flat weights.
        parameters: how many of its weights are parameters; buffers follow them.
        outer: its weights after the last outer step, shape (n,).
        velocity: that of the outer steps, shape (parameters,).
        samples: on which the rank has trained since its last average.
        compressor: of what the rank sends of it, if that is compressed.
        request: the average that is on its way, since inner step `sent_at`.
    """

    places: list[tuple[int, int]]
    parameters: int
    outer: Tensor
    velocity: Tensor
    samples: int = 0
    compressor: ErrorFeedback | None = None
    request: Request | None = None
    sent_at: int = 0

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
    weights, n = replica.weights(), replica.parameter_count
    found = []
    for number, own in enumerate(chosen):
        parameters = sum(end - start for start, end in own)
        places = [*own, *([(n, len(weights))] if number == count - 1 and len(weights) > n else [])]
        fragment = Fragment(places, parameters, weights[:0], weights.new_zeros(parameters))
        fragment.outer = fragment.of(weights)
        found.append(fragment)
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
