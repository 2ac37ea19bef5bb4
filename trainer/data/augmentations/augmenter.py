"""Augmenter: applies torchvision's affine and colour transforms to batches of normalised images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.core.torchvision_import import torchvision
from trainer.data.base import PixelScale

functional = torchvision.transforms.v2.functional
BILINEAR = torchvision.transforms.InterpolationMode.BILINEAR


class Augmenter:
    """Augments the batches of one rank. Keeps no state between batches."""

    def __init__(
        self,
        pixel_scale: PixelScale,
        device: str,
        *,
        flip: float,
        affine: Sequence[float],
        jitter: Sequence[float],
        draws: int,
    ) -> None:
        """
        Args:
            flip: Probability of a horizontal flip.
            affine: Largest rotation and shear, in degrees, and largest relative change of scale.
            jitter: Largest relative change of brightness, contrast and saturation, and of hue in turns.
            draws: Groups of a batch with their own affine and jitter parameters.
        """
        self._mean, self._deviation = (
            torch.from_numpy(each).to(device) for each in (pixel_scale.mean, pixel_scale.deviation)
        )
        self._flip, self._affine, self._jitter, self._draws = flip, affine, jitter, draws
        self._ranges = np.array([*affine, *jitter])

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """See `Augment`. images: normalised, (batch, channels, height, width) float32, channels_last."""
        flipped = torch.from_numpy(rng.random(len(images)) < self._flip).to(images.device)
        groups = min(self._draws, len(images))
        drawn = rng.uniform(-1, 1, (groups, len(self._ranges))) * self._ranges
        if self._flip:
            images = torch.where(flipped.view(-1, 1, 1, 1), functional.horizontal_flip(images), images)
        if self._ranges.any():
            pixels = (images * self._deviation).add_(self._mean).tensor_split(groups)
            changed = [self._transformed(group, *each) for group, each in zip(pixels, drawn, strict=True)]
            images = torch.cat(changed).sub_(self._mean).div_(self._deviation)
        return images.contiguous(memory_format=torch.channels_last)

    def _transformed(
        self, pixels: Tensor, degrees: float, shear: float, scale: float, *jitter: float
    ) -> Tensor:
        """Apply one set of parameters to a group's pixels (0 … 1). Parameters of 0 change nothing."""
        if any(self._affine):
            pixels = functional.affine(
                pixels,
                angle=degrees,
                translate=[0, 0],
                scale=1 + scale,
                shear=[shear, 0.0],
                interpolation=BILINEAR,
            )
        return self._jittered(pixels, jitter)

    def _jittered(self, pixels: Tensor, drawn: Sequence[float]) -> Tensor:
        uses_brightness, uses_contrast, uses_saturation, uses_hue = map(bool, self._jitter)
        brightness, contrast, saturation, hue = drawn
        if uses_brightness:
            pixels = functional.adjust_brightness(pixels, 1 + brightness)
        if uses_contrast:
            pixels = functional.adjust_contrast(pixels, 1 + contrast)
        if uses_saturation:
            pixels = functional.adjust_saturation(pixels, 1 + saturation)
        if uses_hue:
            pixels = functional.adjust_hue(pixels.clamp(0, 1), hue)
        return pixels
