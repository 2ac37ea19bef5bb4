"""Blocks that draw from torch's global generator, with a stream of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# The ranks of a process that are threads share torch's global generators.
GLOBAL_GENERATOR = threading.RLock()


class Draws(nn.Module):
    """A block whose forward pass draws from torch's global generator, as nn.Dropout does.

    Each pass in training continues the stream of `generator`, and leaves the global state as it was. A
    pass in evaluation mode does not advance the stream, so evaluation does not change training.
    """

    def __init__(self, block: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.block, self.generator = block, generator

    def forward(self, x: Tensor) -> Tensor:
        with drawing_from(self.generator, advance=self.training):
            output: Tensor = self.block(x)
        return output


@contextmanager
def drawing_from(generator: torch.Generator, *, advance: bool = True) -> Iterator[None]:
    """Let torch's global generator be `generator` in the block, in which no other thread draws from it.

    advance: whether `generator` is afterwards where the block has left it.
    """
    shared = _global_generator(generator.device)
    with GLOBAL_GENERATOR:
        before = shared.get_state()
        shared.set_state(generator.get_state())
        try:
            yield
        finally:
            if advance:
                generator.set_state(shared.get_state())
            shared.set_state(before)


def _global_generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
