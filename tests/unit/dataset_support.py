"""Shared by the tests of datasets: fake archives, and the textbook normalisation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.base import Data
from trainer.data.datasets.files import Archive

NOWHERE = Path("/nonexistent")  # for datasets that read no data_dir

Pixels = npt.NDArray[np.uint8]


def publish(path: str, content: bytes, folder: Path) -> Archive:
    """An archive whose mirror is a file in `folder`."""
    source = folder / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    return Archive(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), (source.as_uri(),))


def assert_standardised(data: Data, train: Pixels, test: Pixels) -> None:
    """Check both splits against pixels scaled by the mean and deviation of each channel of `train`."""
    mean, deviation = (each((0, 2, 3), keepdims=True) for each in (train.mean, train.std))
    deviation[deviation == 0] = 1
    for split, pixels in ((data.train, train), (data.test, test)):
        np.testing.assert_allclose(split.inputs, (pixels - mean) / deviation, atol=1e-5)
        assert (split.inputs.dtype, split.labels.dtype) == (np.float32, np.int64)
        for array in (split.inputs, split.labels):  # torch.from_numpy warns about read-only arrays
            assert array.flags.c_contiguous
            assert array.flags.writeable
