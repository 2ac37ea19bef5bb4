"""Wide residual network (WRN-d-k), which courses on data-parallel training use for Fashion-MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.models.base import Model, ParallelPair, image_size_error
from trainer.models.layers.norms import NORM, Norm, independent_units

if TYPE_CHECKING:
    import torch

    from trainer.models.base import Blocks

GROUPS = 3
MIN_PIXELS = 8  # per side: two groups halve it, and BatchNorm needs more than one value per channel


class WideResNet(Model):
    """Wide residual network WRN-d-k, for images from 8×8 (Zagoruyko & Komodakis 2016).

    Residual blocks as in He et al. 2016.

    Layers, in order: a convolution to 16 channels; three groups of residual blocks with 16k, 32k and 64k
    channels; average pooling; a fully connected layer. The second and the third group halve the image. With
    k = 10 the groups have 160, 320 and 640 channels. With one block per group the depth d is 10. Use k = 1
    on CPUs.
    """

    channels_last: ClassVar[bool] = True

    widen: int = Field(10, ge=1, le=64, description="k: the groups have 16k, 32k and 64k channels")
    blocks_per_group: int = Field(1, ge=1, le=100, description="N residual blocks: the depth is 6N + 4")
    norm: Norm = Field("batch", description=NORM)

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        return image_size_error(shape, MIN_PIXELS)

    @property
    def has_synchronous_layers(self) -> bool:
        return self.norm == "sync_batch"

    @property
    def batch_statistics(self) -> bool:
        return self.norm in ("batch", "sync_batch")

    @property
    def hidden_matrices(self) -> bool:
        return False

    @property
    def names(self) -> list[str]:
        blocks = [f"block{number}" for number in range(1, GROUPS * self.blocks_per_group + 1)]
        return ["stem", *blocks, "norm", "relu", "pool", "flatten", "fc", "log_softmax"]

    @property
    def classifier(self) -> str:
        return "flatten"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        widths = [
            16 * self.widen * 2**group for group in range(GROUPS) for _ in range(self.blocks_per_group)
        ]
        return [
            ParallelPair(
                f"block{number}.conv1", f"block{number}.conv2", independent_units(self.norm, channels)
            )
            for number, channels in enumerate(widths, start=1)
        ]

    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        from torch import nn

        from trainer.models.layers.norms import build_norm
        from trainer.models.layers.residual import ResidualBlock

        yield "stem", nn.Conv2d(shape[0], 16, kernel_size=3, padding=1, bias=False)
        channels, number = 16, 0
        for group in range(GROUPS):
            for first in [True] + [False] * (self.blocks_per_group - 1):
                number += 1
                out_channels = 16 * self.widen * 2**group
                stride = 2 if first and group else 1
                yield f"block{number}", ResidualBlock(channels, out_channels, stride, self.norm)
                channels = out_channels
        yield "norm", build_norm(self.norm, channels)
        yield "relu", nn.ReLU()
        yield "pool", nn.AdaptiveAvgPool2d(1)
        yield "flatten", nn.Flatten()
        yield "fc", nn.Linear(channels, classes)
        yield "log_softmax", nn.LogSoftmax(dim=1)
