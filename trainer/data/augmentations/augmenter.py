"""The augmenter: changes batches of images as `standard` says, with torchvision's functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.data.augmentations.standard import StandardAugmentation
from trainer.data.augmentations.torchvision_import import torchvision
from trainer.data.base import PixelScale

functional = torchvision.transforms.v2.functional
BILINEAR = torchvision.transforms.InterpolationMode.BILINEAR


class Augmenter:
    """One rank's. Keeps nothing from batch to batch."""

    def __init__(self, law: StandardAugmentation, scale: PixelScale, device: str) -> None:
        self._law = law
        self._mean, self._deviation = (
            torch.from_numpy(each).to(device) for each in (scale.mean, scale.deviation)
        )
        jitter = (law.brightness, law.contrast, law.saturation, law.hue)
        self._widths = np.array([law.degrees, law.shear, law.scale, *jitter])

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """See `Augment`. images: normalised, (batch, channels, height, width) float32, channels_last."""
        law = self._law
        flipped = torch.from_numpy(rng.random(len(images)) < law.flip).to(images.device)
        groups = min(law.draws, len(images))
        drawn = rng.uniform(-1, 1, (groups, len(self._widths))) * self._widths
        if law.flip:
            images = torch.where(flipped.view(-1, 1, 1, 1), functional.horizontal_flip(images), images)
        if law.bends or law.jitters:
            pixels = (images * self._deviation).add_(self._mean).tensor_split(groups)
            changed = [self._changed(group, *each) for group, each in zip(pixels, drawn, strict=True)]
            images = torch.cat(changed).sub_(self._mean).div_(self._deviation)
        return images.contiguous(memory_format=torch.channels_last)

    def _changed(
        self, pixels: Tensor, degrees: float, shear: float, scale: float, *jitter: float
    ) -> Tensor:
        """Apply one set of parameters to a group's pixels (0 … 1); 0 leaves a property unchanged."""
        if self._law.bends:
            pixels = functional.affine(
                pixels,
                angle=degrees,
                translate=[0, 0],
                scale=1 + scale,
                shear=[shear, 0.0],
                interpolation=BILINEAR,
            )
        return self._jittered(pixels, jitter) if self._law.jitters else pixels

    def _jittered(self, pixels: Tensor, jitter: Sequence[float]) -> Tensor:
        law = self._law
        brightness, contrast, saturation, hue = jitter
        if law.brightness:
            pixels = functional.adjust_brightness(pixels, 1 + brightness)
        if law.contrast:
            pixels = functional.adjust_contrast(pixels, 1 + contrast)
        if law.saturation:
            pixels = functional.adjust_saturation(pixels, 1 + saturation)
        if law.hue:
            pixels = functional.adjust_hue(pixels.clamp(0, 1), hue)
        return pixels
