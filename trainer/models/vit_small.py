"""A small vision transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.data.base import image_error
from trainer.models.transformer import Transformer

if TYPE_CHECKING:
    from torch import nn

    from trainer.models.layers.dropout import Dropout


class VitSmall(Transformer):
    """Vision transformer: patches of an image are its tokens (Dosovitskiy et al. 2021).

    The mean over patches goes to the classifier, as in Zhai et al. 2022, "Scaling Vision Transformers".
    """

    causal: ClassVar[bool] = False
    channels_last: ClassVar[bool] = True

    patch: int = Field(7, ge=1, le=64, description="pixels of a patch's side, which divide the image's")

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        if error := image_error(shape):
            return error
        _, height, across = shape
        if height % self.patch or across % self.patch:
            return f"patches of {self.patch}×{self.patch} pixels do not divide {height}×{across} pixels"
        return super().validation_error(shape)

    def embedding(self, shape: tuple[int, ...], classes: int, drop: Dropout) -> nn.Module:
        from trainer.models.layers.transformer import PatchEmbedding

        return PatchEmbedding(shape, self.patch, self.width, drop)

    def head(self, classes: int, embedding: nn.Module) -> nn.Module:
        from trainer.models.layers.transformer import PooledHead, build_norm

        return PooledHead(build_norm(self.norm, self.width), self.width, classes)
