"""Shared by the tests of datasets: fake archives, and checks that apply to every dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.base import Data
from trainer.data.datasets.files import Archive

NOWHERE = Path("/nonexistent")  # for datasets that read no data_dir

Bytes = npt.NDArray[np.uint8]
NOWHERE = Path("/nonexistent")  # for datasets that read no data_dir


def publish(path: str, content: bytes, folder: Path) -> Archive:
    """An archive whose mirror is a file in `folder`."""
    source = folder / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    return Archive(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), (source.as_uri(),))


def expected(pixels: Bytes, train: Bytes) -> npt.NDArray[np.float64]:
    """The textbook normalisation, with the statistics of `train`."""
    axes = (0, 2, 3)
    mean, deviation = train.mean(axes, keepdims=True), train.std(axes, keepdims=True)
    scaled: npt.NDArray[np.float64] = (pixels - mean) / deviation
    return scaled


def assert_ready_for_training(data: Data) -> None:
    for split in (data.train, data.test):
        assert split.inputs.dtype == np.float32
        assert split.inputs.ndim == 4
        assert split.labels.dtype == np.int64
        assert split.labels.shape == (len(split.inputs),)
        assert set(np.unique(split.labels)) <= set(range(data.classes))
        for array in (split.inputs, split.labels):  # torch.from_numpy warns about read-only arrays
            assert array.flags.c_contiguous
            assert array.flags.writeable
    train = data.train.inputs.astype(np.float64)
    np.testing.assert_allclose(train.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(train.std((0, 2, 3)), 1, atol=1e-5)
