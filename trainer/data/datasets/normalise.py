"""Scales raw pixels by the mean and standard deviation of each channel, or to 0 … 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trainer.data.base import Data, Images, PixelScale, Scaling, Split

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
RawLabels = npt.NDArray[np.integer]

_BLOCK_VALUES = 1 << 18  # 2 MiB of float64: stays in the cache


def normalise(
    train: tuple[Pixels, RawLabels],
    test: tuple[Pixels, RawLabels],
    classes: int,
    scaling: Scaling = "standardise",
) -> Data:
    """Scale both splits alike, by the pixels of the training split. The arguments are not changed.

    Training must not depend on the test split, so its statistics are not used.

    Args:
        train: (pixels, labels) with shapes (samples, channels, height, width) and (samples,).
        test: the same for the test split.
        scaling: `standardise` divides by the standard deviation of each channel after subtracting its
            mean; a constant channel becomes zero. `unit` maps the darkest pixel to 0 and the brightest to
            1, for all channels together; for bytes from 0 to 255 as torchvision's `ToTensor`.
    """
    darkest, span = pixel_range(train[0])
    if scaling == "standardise":
        mean, deviation = _statistics(train[0])
    else:
        one = np.ones((train[0].shape[1], 1, 1), np.float32)
        mean, deviation = darkest * one, span * one
    return Data(
        train=Split(_scaled(train[0], mean, deviation), train[1].astype(np.int64)),
        test=Split(_scaled(test[0], mean, deviation), test[1].astype(np.int64)),
        classes=classes,
        scale=PixelScale((mean - darkest) / span, deviation / span),
    )


def _scaled(pixels: Pixels, mean: Images, deviation: Images) -> Images:
    # The first operation makes the float32 copy, the second changes it in place. No other array is as big.
    images: Images = np.subtract(pixels, mean, dtype=np.float32, order="C")
    images /= deviation
    return images


def pixel_range(pixels: Pixels) -> tuple[np.float32, np.float32]:
    """The darkest pixel, and the distance from it to the brightest; 1 if all are equal."""
    darkest = np.float32(pixels.min())
    return darkest, np.float32(pixels.max()) - darkest or np.float32(1)


def _statistics(pixels: Pixels) -> tuple[Images, Images]:
    """Mean and standard deviation of each channel, float32, shape (channels, 1, 1).

    Two passes in float64, block by block: numpy's `var` would allocate a float64 copy of the whole split.
    """
    count = pixels.size // pixels.shape[1]
    axes = (0, 2, 3)
    mean = sum(block.sum(axes, np.float64, keepdims=True) for block in _blocks(pixels)) / count
    squares = sum(np.square(block - mean).sum(axes, keepdims=True) for block in _blocks(pixels))
    deviation = np.sqrt(squares / count)
    deviation[deviation == 0] = 1
    return mean[0].astype(np.float32), deviation[0].astype(np.float32)


def _blocks(pixels: Pixels) -> Iterator[Pixels]:
    samples = max(1, _BLOCK_VALUES // pixels[0].size)
    for start in range(0, len(pixels), samples):
        yield pixels[start : start + samples]
