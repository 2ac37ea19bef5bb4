"""A small VGG: a plain chain of layers with most of its parameters in the classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.models.base import Model, ParallelPair, image_size_error
from trainer.models.layers.norms import NORM, Norm, independent_units

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks

GROUPS = 3
MIN_PIXELS = 2**GROUPS  # per side, which each group halves


class VggSmall(Model):
    """Three groups of two 3×3 convolutions, for images from 8×8 (Simonyan & Zisserman 2015).

    A max-pool ends each group; two fully connected layers with dropout between them follow.

    Convolutions are initialised as in He et al. 2015 ("Delving Deep into Rectifiers"). With torch's default
    the activations shrink from layer to layer, and without normalisation the network does not learn.
    """

    channels_last: ClassVar[bool] = True

    width: int = Field(
        32, ge=1, le=1024, description="channels of the first group; the others have 2 and 4 times as many"
    )
    hidden: int = Field(256, ge=1, le=65536, description="width of the fully connected layer")
    dropout: float = Field(0.5, ge=0, lt=1, description="probability of dropping one of its activations")
    norm: Literal["none", Norm] = Field("none", description=NORM)

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        return image_size_error(shape, MIN_PIXELS)

    @property
    def has_synchronous_layers(self) -> bool:
        return self.norm == "sync_batch"

    @property
    def batch_statistics(self) -> bool:
        return self.norm in ("batch", "sync_batch")

    @property
    def names(self) -> list[str]:
        layer = ["conv", "relu"] if self.norm == "none" else ["conv", "norm", "relu"]
        names = []
        for group in range(1, GROUPS + 1):
            names += [f"{kind}{group}{letter}" for letter in "ab" for kind in layer]
            names.append(f"pool{group}")
        return [*names, "flatten", "fc1", "relu_fc1", "dropout", "fc2", "log_softmax"]

    @property
    def classifier(self) -> str:
        return "flatten"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        widths = [self.width * 2 ** (group - 1) for group in range(1, GROUPS + 1)]
        convolutions = [
            ParallelPair(f"conv{group}a", f"conv{group}b", independent_units(self.norm, channels))
            for group, channels in enumerate(widths, start=1)
        ]
        return [*convolutions, ParallelPair("fc1", "fc2", self.hidden)]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        from trainer.models.layers.dropout import Dropout
        from trainer.models.layers.norms import build_norm

        channels, height, width = shape
        for group in range(1, GROUPS + 1):
            out_channels = self.width * 2 ** (group - 1)
            for letter in "ab":
                convolution = nn.Conv2d(channels, out_channels, kernel_size=3, padding=1)
                nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
                yield f"conv{group}{letter}", convolution
                if self.norm != "none":
                    yield f"norm{group}{letter}", build_norm(self.norm, out_channels)
                yield f"relu{group}{letter}", nn.ReLU()
                channels = out_channels
            yield f"pool{group}", nn.MaxPool2d(2)
            height, width = height // 2, width // 2
        yield "flatten", nn.Flatten()
        yield "fc1", nn.Linear(channels * height * width, self.hidden)
        yield "relu_fc1", nn.ReLU()
        yield "dropout", Dropout(self.dropout, generator)
        yield "fc2", nn.Linear(self.hidden, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
