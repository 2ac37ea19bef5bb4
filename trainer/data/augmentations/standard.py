"""What labs do to CIFAR-10: flip, rotation, shear and scale, colour jitter, then normalise."""

from __future__ import annotations

from pydantic import Field

from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale


class StandardAugmentation(Augmentation):
    """Random flip, rotation, shear, scale and colour jitter by torchvision, on whole batches.

    As RandomHorizontalFlip, RandomAffine and ColorJitter, in memory.

    In this order, each drawn uniformly: a flip; rotation, shear and scale about the centre in one bilinear
    interpolation, black outside the image; brightness, contrast, saturation, hue. Colours are jittered
    between the darkest and the brightest pixel of the training split and cut off there; then images are
    normalised as they were. What is 0 does nothing: with all at 0 images come back bit for bit.

    Computed by `torchvision.transforms.v2.functional`, on tensors. v2's own random transforms draw one set
    of parameters for a whole batch, and from torch's global generator, which ranks that are threads share;
    here they are drawn from the run's streams. Flips are each image's own. The functions take one angle or
    factor a call, so a batch is cut into `draws` groups, and the images of a group have all else in common.
    What may happen to an image is the same for any number of groups; how much the images of one batch
    differ is not. As many `draws` as images make everything each image's own; for 128 images of CIFAR-10
    that takes three times the time of 16. (One grid_sample with an angle per image would be as fast as 8
    groups, but it would be our own code, and jitter is half of the time.)
    """

    flip: float = Field(0.5, ge=0, le=1, description="probability of swapping an image's left and right")
    degrees: float = Field(10.0, ge=0, le=180, description="rotation by up to so many degrees either way")
    shear: float = Field(10.0, ge=0, le=80, description="shear along rows, degrees either way")
    scale: float = Field(0.2, ge=0, le=0.9, description="size times 1 - scale … 1 + scale")
    brightness: float = Field(0.2, ge=0, le=1, description="times 1 - brightness … 1 + brightness")
    contrast: float = Field(0.2, ge=0, le=1, description="times 1 - contrast … 1 + contrast")
    saturation: float = Field(0.2, ge=0, le=1, description="times 1 - saturation … 1 + saturation")
    hue: float = Field(0.0, ge=0, le=0.5, description="turned by up to this share of the colour circle")
    draws: int = Field(16, ge=1, le=65536, description="groups of a batch that draw all but flips apart")

    @property
    def bends(self) -> bool:
        return any((self.degrees, self.shear, self.scale))

    @property
    def jitters(self) -> bool:
        return any((self.brightness, self.contrast, self.saturation, self.hue))

    def validation_error(self, shape: tuple[int, int, int]) -> str | None:
        channels = shape[0]
        if channels == 1 and (self.saturation or self.hue):
            return "images of one channel have no colour; allowed: saturation 0 and hue 0"
        if channels not in (1, 3) and self.jitters:
            return (
                f"colours are jittered of 1 or 3 channels, not of {channels}; "
                "allowed: brightness, contrast, saturation and hue 0"
            )
        return None

    def build(self, scale: PixelScale, device: str) -> Augment | None:
        if not (self.flip or self.bends or self.jitters):
            return None
        from trainer.data.augmentations.augmenter import Augmenter

        return Augmenter(self, scale, device)
