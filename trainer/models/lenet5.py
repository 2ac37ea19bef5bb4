"""LeNet-5 without its third fully connected layer, as in courses' exercises on partitioned training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.models.base import Model, ParallelPair, exact_image_size_error

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks


class LeNet5(Model):
    """Convolutions of LeNet-5 and two fully connected layers, for 28×28 images, after LeCun et al. 1998.

    Layers, in order: conv 5×5 with padding 2 (6), ReLU, max-pool, conv 5×5 (16), ReLU, max-pool, fully
    connected 400→120, ReLU, fully connected 120→classes, log-softmax. LeNet-5 has a layer of 84 before the
    last, other activations and mean pooling.
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
        return [ParallelPair("conv1", "conv2", 6), ParallelPair("fc1", "fc2", 120)]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        yield "conv1", nn.Conv2d(shape[0], 6, kernel_size=5, padding=2)
        yield "relu1", nn.ReLU()
        yield "pool1", nn.MaxPool2d(2)
        yield "conv2", nn.Conv2d(6, 16, kernel_size=5)
        yield "relu2", nn.ReLU()
        yield "pool2", nn.MaxPool2d(2)
        yield "flatten", nn.Flatten()
        yield "fc1", nn.Linear(16 * 5 * 5, 120)
        yield "relu3", nn.ReLU()
        yield "fc2", nn.Linear(120, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
