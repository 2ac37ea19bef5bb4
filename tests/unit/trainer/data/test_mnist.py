"""Mistakes in reading MNIST and Fashion-MNIST: names, checksums, byte order, content that is cut off."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.unit.dataset_support import Pixels, assert_standardised, publish
from trainer.data.base import DataError
from trainer.data.datasets.mnist import FashionMnist, Mnist


def idx(array: Pixels) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("mnist", [Mnist, FashionMnist])
def test_files_are_downloaded_and_read(
    mnist: type[Mnist | FashionMnist], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images, test_images = (rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (40, 10))
    labels, test_labels = (rng.integers(0, 10, n, np.uint8) for n in (40, 10))
    mirror, data_dir = tmp_path / "mirror", tmp_path / "data"
    archives = tuple(
        publish(real.path, gzip.compress(idx(array)), mirror)
        for real, array in zip(mnist.archives, (images, labels, test_images, test_labels), strict=True)
    )
    monkeypatch.setattr(mnist, "archives", archives)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not in"):
        mnist().load(data_dir)
    assert not data_dir.exists()  # loading writes nothing
    mnist().prepare(data_dir)
    data = mnist().load(data_dir)
    assert_standardised(data, images[:, None], test_images[:, None])
    np.testing.assert_array_equal(data.train.labels, labels)
    np.testing.assert_array_equal(data.test.labels, test_labels)
    assert data.classes == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "is not an IDX file of bytes"),  # type float32
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], "does not hold 2×28×28 values"),
        (idx(np.zeros(3, np.uint8)) + b"\0", "does not hold 3 values"),
        (b"\0\0\x08\x03\0\0\0\x02", "does not hold"),
    ],
    ids=["empty", "other type", "cut off", "longer", "without sizes"],
)
def test_invalid_content_is_refused(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = publish("MNIST/raw/file.gz", gzip.compress(content), tmp_path)
    monkeypatch.setattr(Mnist, "archives", (archive,) * 4)
    with pytest.raises(DataError, match=message):
        Mnist().load(tmp_path)


def test_names_and_checksums_are_those_of_torchvision() -> None:
    from trainer.data.augmentations.torchvision_import import torchvision

    published = torchvision.datasets
    for ours, theirs in ((Mnist, published.MNIST), (FashionMnist, published.FashionMNIST)):
        assert [(archive.path, archive.md5, archive.urls) for archive in ours.archives] == [
            (f"{theirs.__name__}/raw/{name}", md5, tuple(mirror + name for mirror in theirs.mirrors))
            for name, md5 in theirs.resources
        ]
