"""MNIST and Fashion-MNIST: read directly from the published files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.datasets import real_mnist_dir
from tests.unit.dataset_support import Bytes, assert_ready_for_training, expected, publish
from trainer.data.base import DataError, Dataset
from trainer.data.datasets.files import Archive
from trainer.data.datasets.mnist import FashionMnist, Mnist


def idx(array: Bytes) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def fake_idx_archives(arrays: list[Bytes], folder: Path, mnist: type[Dataset]) -> tuple[Archive, ...]:
    """Archives of the arrays under the published file names, with a mirror in `folder`."""
    return tuple(
        publish(real.path, gzip.compress(idx(array)), folder)
        for real, array in zip(mnist.archives, arrays, strict=True)  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("mnist", [Mnist, FashionMnist])
def test_mnist_is_downloaded_and_read(
    mnist: type[Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images, test_images = (rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (40, 10))
    labels, test_labels = (rng.integers(0, 10, n, np.uint8) for n in (40, 10))
    arrays = [images, labels, test_images, test_labels]
    monkeypatch.setattr(mnist, "archives", fake_idx_archives(arrays, tmp_path / "mirror", mnist))

    data_dir = tmp_path / "data"
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not in"):
        mnist().load(data_dir)
    assert not data_dir.exists()  # loading writes nothing

    mnist().prepare(data_dir)
    data = mnist().load(data_dir)
    assert_ready_for_training(data)
    assert data.classes == 10
    np.testing.assert_array_equal(data.train.labels, labels)
    np.testing.assert_array_equal(data.test.labels, test_labels)
    np.testing.assert_allclose(data.train.inputs, expected(images[:, None], images[:, None]), atol=1e-5)
    np.testing.assert_allclose(data.test.inputs, expected(test_images[:, None], images[:, None]), atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "is not an IDX file of bytes"),  # type float32
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], "does not hold 2×28×28 values"),
        (idx(np.zeros(3, np.uint8)) + b"\0", "does not hold 3 values"),
        (b"\0\0\x08\x03\0\0\0\x02", "does not hold"),
    ],
)
def test_mnist_rejects_invalid_content(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = publish("MNIST/raw/file.gz", gzip.compress(content), tmp_path)
    monkeypatch.setattr(Mnist, "archives", (archive,) * 4)
    with pytest.raises(DataError, match=message):
        Mnist().load(tmp_path)


@pytest.mark.slow
def test_mnist_equals_torchvision(tmp_path: Path) -> None:
    from trainer.data.augmentations.torchvision_import import torchvision

    datasets = torchvision.datasets
    data_dir = real_mnist_dir()
    raw = {}
    for archive in Mnist.archives:
        path = tmp_path / Path(archive.path).stem
        path.write_bytes(gzip.decompress((data_dir / archive.path).read_bytes()))
        read = datasets.mnist.read_image_file if "images" in path.name else datasets.mnist.read_label_file
        raw[path.name] = read(path).numpy()
    pixels = raw["train-images-idx3-ubyte"]
    mean, deviation = pixels.mean(), pixels.std()
    assert (mean / 255, deviation / 255) == pytest.approx(
        (0.1307, 0.3081), abs=5e-5
    )  # the usual normalisation constants

    Mnist().prepare(data_dir)
    data = Mnist().load(data_dir)
    assert data.train.inputs.shape == (Mnist().train_samples, 1, 28, 28) == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    np.testing.assert_array_equal(data.train.labels, raw["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(data.test.labels, raw["t10k-labels-idx1-ubyte"])
    for images, original in (
        (data.train.inputs, pixels),
        (data.test.inputs, raw["t10k-images-idx3-ubyte"]),
    ):
        images *= deviation  # in place: a copy would double the memory
        images += mean
        assert abs(images[:, 0] - original).max() < 1e-3


def test_archive_names_and_checksums_equal_torchvision() -> None:
    from trainer.data.augmentations.torchvision_import import torchvision

    datasets = torchvision.datasets
    for ours, theirs in (
        (Mnist, datasets.MNIST),
        (FashionMnist, datasets.FashionMNIST),
    ):
        assert [(archive.path, archive.md5) for archive in ours.archives] == [
            (f"{theirs.__name__}/raw/{name}", md5) for name, md5 in theirs.resources
        ]
        for archive in ours.archives:
            name = Path(archive.path).name
            assert archive.urls == tuple(mirror + name for mirror in theirs.mirrors)
