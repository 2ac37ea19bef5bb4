"""LeNet as in courses' exercises on parallel SGD: two convolutions, two fully connected layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.models.base import Model, ParallelPair, exact_image_size_error

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks


class LeNet(Model):
    """Two convolutions and two fully connected layers, for 28×28 images, after LeCun et al. 1998.

    Layers, in order: conv 5×5 (10), max-pool, ReLU, conv 5×5 (30), max-pool, ReLU,
    dropout, max-pool, fully connected 120→60, ReLU, fully connected 60→classes, log-softmax.
    """

    channels_last: ClassVar[bool] = True

    dropout: float = Field(0.5, ge=0, lt=1, description="probability of dropping an activation")

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        return exact_image_size_error(shape, 28)

    @property
    def names(self) -> list[str]:
        convolutions = ["conv1", "pool1", "relu1", "conv2", "pool2", "relu2", "dropout", "pool3"]
        return [*convolutions, "flatten", "fc1", "relu3", "fc2", "log_softmax"]

    @property
    def classifier(self) -> str:
        return "flatten"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        return [ParallelPair("conv1", "conv2", 10), ParallelPair("fc1", "fc2", 60)]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        from trainer.models.layers.dropout import Dropout

        yield "conv1", nn.Conv2d(shape[0], 10, kernel_size=5)
        yield "pool1", nn.MaxPool2d(2)
        yield "relu1", nn.ReLU()
        yield "conv2", nn.Conv2d(10, 30, kernel_size=5)
        yield "pool2", nn.MaxPool2d(2)
        yield "relu2", nn.ReLU()
        yield "dropout", Dropout(self.dropout, generator)
        yield "pool3", nn.MaxPool2d(2)
        yield "flatten", nn.Flatten()
        yield "fc1", nn.Linear(30 * 2 * 2, 60)
        yield "relu3", nn.ReLU()
        yield "fc2", nn.Linear(60, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
