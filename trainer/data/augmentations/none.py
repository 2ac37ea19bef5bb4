"""No augmentation: images are trained on as they are."""

from __future__ import annotations

from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale


class NoneAugmentation(Augmentation):
    """Train on the images as they are."""

    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        return None
