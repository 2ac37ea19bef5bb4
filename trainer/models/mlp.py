"""Multi-layer perceptron with any number of hidden layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainer.models.base import Model, ParallelPair

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks

Width = Annotated[int, Field(ge=1, le=65536)]


class Mlp(Model):
    """Fully connected layers with ReLU between them, for images of any size."""

    hidden: list[Width] = Field(default=[128, 64], description="width of each hidden layer, first to last")

    @property
    def names(self) -> list[str]:
        layers = range(1, len(self.hidden) + 1)
        hidden = [f"{kind}{layer}" for layer in layers for kind in ("fc", "relu")]
        return ["flatten", *hidden, "output", "log_softmax"]

    @property
    def hidden_matrices(self) -> bool:
        return len(self.hidden) > 1

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        layers = [name for name in self.names if name.startswith("fc")] + ["output"]
        pairs = zip(layers[::2], layers[1::2], self.hidden[::2], strict=False)
        return [ParallelPair(*pair) for pair in pairs]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from math import prod

        from torch import nn

        yield "flatten", nn.Flatten()
        width = prod(shape)
        for layer, hidden in enumerate(self.hidden, start=1):
            yield f"fc{layer}", nn.Linear(width, hidden)
            yield f"relu{layer}", nn.ReLU()
            width = hidden
        yield "output", nn.Linear(width, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
