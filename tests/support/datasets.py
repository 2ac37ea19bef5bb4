"""The location of the real MNIST files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.data.datasets.mnist import Mnist


def real_mnist_dir() -> Path:
    """The directory of the MNIST files; skips the test if they are absent."""
    beside_repository = Path(__file__).parents[3] / "shared" / "datasets"
    data_dir = Path(os.environ.get("SHARDYARD_DATA", beside_repository))
    absent = [archive.path for archive in Mnist.archives if not (data_dir / archive.path).exists()]
    if absent:
        pytest.skip(f"{data_dir} lacks {absent[0]}; name a directory that has it with SHARDYARD_DATA")
    return data_dir
