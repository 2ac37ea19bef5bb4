"""The location of real datasets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.data.datasets.mnist import Mnist


def shared_data_dir() -> Path:
    """The directory of real datasets, which may be absent."""
    beside_repository = Path(__file__).parents[3] / "shared" / "datasets"
    return Path(os.environ.get("SHARDYARD_DATA", beside_repository))


def mnist_missing() -> str | None:
    """Why the MNIST files are not there, or None."""
    data_dir = shared_data_dir()
    absent = [archive.path for archive in Mnist.archives if not (data_dir / archive.path).exists()]
    if not absent:
        return None
    return f"{data_dir} lacks {absent[0]}; name a directory that has it with SHARDYARD_DATA"


def real_mnist_dir() -> Path:
    """The directory of the MNIST files; skips the test if they are absent."""
    if missing := mnist_missing():
        pytest.skip(missing)
    return shared_data_dir()
