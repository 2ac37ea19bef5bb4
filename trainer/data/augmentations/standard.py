"""The usual augmentation of CIFAR-10: flip, rotation, shear, scale and colour jitter."""

from __future__ import annotations

from pydantic import Field

from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import DataError, PixelScale, image_error


class StandardAugmentation(Augmentation):
    """Random flip, rotation, shear, scale and colour jitter by torchvision, on whole batches.

    The same as torchvision's RandomHorizontalFlip, RandomAffine and ColorJitter, in this order. Each
    parameter is uniform in its range. Rotation, shear and scale are about the centre and use one bilinear
    interpolation; pixels outside the image are black. Jitter changes brightness, contrast, saturation and
    hue. It scales pixels to 0 … 1, the darkest and the brightest of the training split, clips them to that
    range, and normalises again. A parameter of 0 is off. With all at 0, images stay the same bit for bit.

    `torchvision.transforms.v2.functional` does the work, on tensors. The random transforms of v2 draw one
    set of parameters per batch, from torch's global generator, which ranks that are threads share. Here the
    run's own generators draw them. Each image has its own flip. The other functions take one angle or
    factor per call, so a batch is split into `draws` groups whose images share these parameters. The
    distribution of each image is the same for any number of groups; the diversity within a batch grows with
    it. With as many `draws` as images, every image has its own parameters: for 128 images of CIFAR-10 that
    takes three times as long as 16. (One grid_sample with an angle per image would be as fast as 8 groups,
    but it would be our own code, and jitter takes half of the time.)
    """

    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
    degrees: float = Field(10.0, ge=0, le=180, description="largest rotation in degrees, either way")
    shear: float = Field(10.0, ge=0, le=80, description="largest shear along rows in degrees, either way")
    scale: float = Field(0.2, ge=0, le=0.9, description="scale factor: 1 - scale to 1 + scale")
    brightness: float = Field(
        0.2, ge=0, le=1, description="brightness factor: 1 - brightness to 1 + brightness"
    )
    contrast: float = Field(0.2, ge=0, le=1, description="contrast factor: 1 - contrast to 1 + contrast")
    saturation: float = Field(
        0.2, ge=0, le=1, description="saturation factor: 1 - saturation to 1 + saturation"
    )
    hue: float = Field(0.0, ge=0, le=0.5, description="largest shift of hue, in turns of the colour circle")
    draws: int = Field(
        16, ge=1, le=65536, description="groups of a batch with their own parameters; flips are per image"
    )

    @property
    def _affine(self) -> tuple[float, ...]:
        return self.degrees, self.shear, self.scale

    @property
    def _jitter(self) -> tuple[float, ...]:
        return self.brightness, self.contrast, self.saturation, self.hue

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        if error := image_error(shape):
            return error
        channels = shape[0]
        if channels == 1 and (self.saturation or self.hue):
            return (
                f"saturation {self.saturation:g} and hue {self.hue:g} need images of 3 channels, not of 1; "
                "allowed: saturation 0 and hue 0"
            )
        if channels not in (1, 3) and any(self._jitter):
            return (
                f"colour jitter needs images of 1 or 3 channels, not of {channels}; "
                "allowed: brightness, contrast, saturation and hue 0"
            )
        return None

    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        if not (self.flip or any(self._affine) or any(self._jitter)):
            return None
        if scale is None:
            raise DataError("augmentation standard needs images, and the dataset has other inputs")
        from trainer.data.augmentations.augmenter import Augmenter

        return Augmenter(
            scale, device, flip=self.flip, affine=self._affine, jitter=self._jitter, draws=self.draws
        )
