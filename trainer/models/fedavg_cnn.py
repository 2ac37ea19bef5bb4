"""The convolutional network with which federated averaging was introduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.models.base import Model, ParallelPair, exact_image_size_error

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks


class FedAvgCnn(Model):
    """The CNN of McMahan et al. 2017, for 28×28 images: 1,663,370 parameters with ten classes.

    Conv 5×5 with padding 2 (32), ReLU, max-pool, conv 5×5 with padding 2 (64), ReLU, max-pool, fully
    connected 3136→512, ReLU, fully connected 512→classes, log-softmax.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", section 3. It names no padding and no ReLU after the convolutions; the padding follows from the
    number of parameters.
    """

    channels_last: ClassVar[bool] = True

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        return exact_image_size_error(shape, 28)

    @property
    def names(self) -> list[str]:
        convolutions = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2"]
        return [*convolutions, "flatten", "fc1", "relu3", "fc2", "log_softmax"]

    @property
    def classifier(self) -> str:
        return "flatten"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        return [ParallelPair("conv1", "conv2", 32), ParallelPair("fc1", "fc2", 512)]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        yield "conv1", nn.Conv2d(shape[0], 32, kernel_size=5, padding=2)
        yield "relu1", nn.ReLU()
        yield "pool1", nn.MaxPool2d(2)
        yield "conv2", nn.Conv2d(32, 64, kernel_size=5, padding=2)
        yield "relu2", nn.ReLU()
        yield "pool2", nn.MaxPool2d(2)
        yield "flatten", nn.Flatten()
        yield "fc1", nn.Linear(64 * 7 * 7, 512)
        yield "relu3", nn.ReLU()
        yield "fc2", nn.Linear(512, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
