"""Generated data of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainer.data.base import Data, Images, Labels, ScaledDataset
from trainer.data.datasets.normalise import normalise

_KNOTS = 4  # values per axis between which a template is interpolated


class Synthetic(ScaledDataset):
    """Generated images of any shape: one smooth image per class, plus noise; no download.

    Class sizes differ by at most 1. The data depend only on the parameters and not on the run's seed, so
    all runs of a sweep train on the same samples. With the default size and noise, the accuracy of a small
    network starts well below 100 % and comes close to it in a few epochs. Noise of 8 makes it hard.
    """

    samples: int = Field(default=2048, ge=1, description="samples in the training split")
    test_samples: int = Field(default=512, ge=1, description="samples in the test split")
    classes: int = Field(default=10, ge=2, le=1000, description="classes; an event has room for 1000")
    channels: int = Field(default=1, ge=1, description="channels of an image")
    height: int = Field(default=28, ge=1, description="rows of an image")
    width: int = Field(default=28, ge=1, description="columns of an image")
    noise: float = Field(
        default=4.0,
        ge=0,
        le=1e6,
        description="standard deviation of the noise, that of the pictures being 1",
    )
    data_seed: int = Field(default=0, ge=0, description="seed of the pictures, labels and noise")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    def class_count(self) -> int:
        return self.classes

    def load(self, data_dir: Path) -> Data:
        # A generator each, so that the size of the training split does not change the test split.
        for_templates, for_train, for_test = np.random.default_rng(self.data_seed).spawn(3)
        templates = self._templates(for_templates)
        return normalise(
            self._split(templates, self.samples, for_train),
            self._split(templates, self.test_samples, for_test),
            self.classes,
            self.scaling,
        )

    def _templates(self, rng: np.random.Generator) -> Images:
        """One image per class, shape (classes, channels, height, width), standard deviation 1."""
        knots = rng.standard_normal((self.classes, self.channels, _KNOTS, _KNOTS))
        templates = _interpolation(self.height) @ knots @ _interpolation(self.width).T
        scaled: Images = (templates / templates.std()).astype(np.float32)
        return scaled

    def _split(self, templates: Images, samples: int, rng: np.random.Generator) -> tuple[Images, Labels]:
        labels = rng.permutation(np.arange(samples) % self.classes)
        images = rng.standard_normal((samples, *templates.shape[1:]), np.float32)
        images *= self.noise
        images += templates[labels]
        return images, labels


def _interpolation(size: int) -> npt.NDArray[np.float64]:
    """Matrix, shape (size, _KNOTS), that interpolates linearly between the knots at `size` pixels."""
    position = np.linspace(0, _KNOTS - 1, size)
    return np.maximum(0, 1 - abs(position[:, None] - np.arange(_KNOTS)))
