"""The small convolutional network of the parallel SGD lab sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from trainer.models.base import Model

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks


class LeNet(Model):
    """A network in the manner of LeNet (LeCun et al. 1998) for images of 28×28 pixels.

    Layers in the lab sheet's order: conv 5×5 (10), max-pool, ReLU, conv 5×5 (30), max-pool, ReLU,
    dropout, max-pool, fully connected 120→60, ReLU, fully connected 60→classes, log-softmax.
    """

    dropout: float = Field(0.5, ge=0, lt=1, description="probability of dropping an activation")

    def misfit(self, shape: tuple[int, int, int]) -> str | None:
        _, height, width = shape
        return None if (height, width) == (28, 28) else f"it takes 28×28 pixels, not {height}×{width}"

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        from trainer.models.dropout import Dropout

        return [
            ("conv1", nn.Conv2d(shape[0], 10, kernel_size=5)),
            ("pool1", nn.MaxPool2d(2)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(10, 30, kernel_size=5)),
            ("pool2", nn.MaxPool2d(2)),
            ("relu2", nn.ReLU()),
            ("dropout", Dropout(self.dropout, generator)),
            ("pool3", nn.MaxPool2d(2)),
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(30 * 2 * 2, 60)),
            ("relu3", nn.ReLU()),
            ("fc2", nn.Linear(60, classes)),
            ("log_softmax", nn.LogSoftmax(dim=1)),
        ]
