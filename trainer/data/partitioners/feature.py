"""Feature skew: equal random parts, whose images are distorted differently on each node."""

from __future__ import annotations

from math import cos, sin
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainer.data.base import Images, Indices, Labels, Partitioner

_AT_ONCE = 1024  # images per chunk, which limits the memory of intermediate results


class Feature(Partitioner):
    """Split at random; distort images more from node to node (Li et al. 2022; Ghosh et al. 2020).

    Node i = 0 … P - 1 distorts its training images with level `strength` × i / (P - 1). The images of
    the first node, of a single node and of the test split are not distorted. Images are distorted once
    per run and not anew in each step; with `reshuffle`, once per epoch, inside the measured time.

    noise     Adds Gaussian noise of standard deviation `level` to every pixel, where all training pixels
              have standard deviation 1. The "noise-based feature imbalance" of Li et al. 2022 ("Federated
              Learning on Non-IID Data Silos"), where the variance grows linearly with i instead.
    rotation  Rotates by the angle `level` in radians (0.785 is 45°), counter-clockwise about the centre,
              with bilinear interpolation; pixels outside the image repeat its edge. Ghosh et al. 2020
              ("An Efficient Framework for Clustered Federated Learning") rotate by quarter turns.
    """

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    transforms_images: ClassVar[bool] = True

    distortion: Literal["noise", "rotation"] = Field("noise", description="what is done to the images")
    strength: float = Field(
        0.5, ge=0, le=1000, description="on the last node: standard deviation of the noise, or radians"
    )

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        self.check(labels, parts)
        return np.array_split(rng.permutation(len(labels)), parts)

    def transform_images(self, images: Images, rank: int, parts: int, rng: np.random.Generator) -> Images:
        level = self.strength * rank / max(1, parts - 1)
        if level == 0:
            return images
        return _rotated(images, level) if self.distortion == "rotation" else _noisy(images, level, rng)


def _noisy(images: Images, deviation: float, rng: np.random.Generator) -> Images:
    noisy = rng.standard_normal(images.shape, np.float32)
    noisy *= deviation
    noisy += images
    return noisy


def _rotated(images: Images, angle: float) -> Images:
    height, width = images.shape[2:]
    down, right = np.mgrid[:height, :width].reshape(2, -1) - np.array([[height - 1], [width - 1]]) / 2
    # The source of each pixel: its position rotated back by the angle, with rows counted downwards.
    row = np.clip(right * sin(angle) + down * cos(angle) + (height - 1) / 2, 0, height - 1)
    column = np.clip(right * cos(angle) - down * sin(angle) + (width - 1) / 2, 0, width - 1)
    top, left = np.floor(row).astype(int), np.floor(column).astype(int)
    below, beside = (row - top).astype(np.float32), (column - left).astype(np.float32)
    bottom, last = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    rotated = np.empty_like(images)
    for start in range(0, len(images), _AT_ONCE):
        chunk = images[start : start + _AT_ONCE]
        pixels = chunk.reshape(-1, height * width)
        upper = pixels[:, top * width + left] * (1 - beside) + pixels[:, top * width + last] * beside
        lower = pixels[:, bottom * width + left] * (1 - beside) + pixels[:, bottom * width + last] * beside
        rotated[start : start + _AT_ONCE] = (upper * (1 - below) + lower * below).reshape(chunk.shape)
    return rotated
