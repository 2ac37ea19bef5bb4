"""A multi-layer perceptron of any depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainer.models.base import Model

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks

Width = Annotated[int, Field(ge=1, le=65536)]


class Mlp(Model):
    """Fully connected layers with ReLU between them; any input shape, flattened."""

    hidden: list[Width] = Field(default=[128, 64], description="width of each hidden layer, first to last")

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from math import prod

        from torch import nn

        blocks: Blocks = [("flatten", nn.Flatten())]
        width = prod(shape)
        for layer, hidden in enumerate(self.hidden, start=1):
            blocks += [(f"fc{layer}", nn.Linear(width, hidden)), (f"relu{layer}", nn.ReLU())]
            width = hidden
        blocks += [("output", nn.Linear(width, classes)), ("log_softmax", nn.LogSoftmax(dim=1))]
        return blocks
