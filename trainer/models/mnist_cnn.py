"""The convolutional network of PyTorch's basic MNIST example."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.models.base import Model, ParallelPair, exact_image_size_error

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks


class MnistCnn(Model):
    """The CNN of PyTorch's MNIST example (pytorch/examples, mnist, 2017), for 28×28 images.

    Conv 5×5 (10), max-pool, ReLU, conv 5×5 (20), dropout of whole channels, max-pool, ReLU, fully connected
    320→50, ReLU, dropout, fully connected 50→classes, log-softmax. Both dropout layers use the
    same probability.
    """

    channels_last: ClassVar[bool] = True

    dropout: float = Field(
        0.5, ge=0, lt=1, description="probability of dropping a channel or an activation"
    )

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        return exact_image_size_error(shape, 28)

    @property
    def names(self) -> list[str]:
        convolutions = ["conv1", "pool1", "relu1", "conv2", "dropout_conv2", "pool2", "relu2"]
        return [*convolutions, "flatten", "fc1", "relu3", "dropout_fc1", "fc2", "log_softmax"]

    @property
    def classifier(self) -> str:
        return "flatten"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        return [ParallelPair("conv1", "conv2", 10), ParallelPair("fc1", "fc2", 50)]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        from trainer.models.layers.dropout import ChannelDropout, Dropout

        yield "conv1", nn.Conv2d(shape[0], 10, kernel_size=5)
        yield "pool1", nn.MaxPool2d(2)
        yield "relu1", nn.ReLU()
        yield "conv2", nn.Conv2d(10, 20, kernel_size=5)
        yield "dropout_conv2", ChannelDropout(self.dropout, generator)
        yield "pool2", nn.MaxPool2d(2)
        yield "relu2", nn.ReLU()
        yield "flatten", nn.Flatten()
        yield "fc1", nn.Linear(20 * 4 * 4, 50)
        yield "relu3", nn.ReLU()
        yield "dropout_fc1", Dropout(self.dropout, generator)
        yield "fc2", nn.Linear(50, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
