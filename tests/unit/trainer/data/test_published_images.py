"""Mistakes in reading MNIST and CIFAR-10: names, checksums, orders, damaged files, hostile pickles."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import pickletools
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data.base import Data, DataError
from trainer.data.datasets.cifar10 import Cifar10, Cifar100
from trainer.data.datasets.files import Archive
from trainer.data.datasets.mnist import FashionMnist, Mnist

Pixels = npt.NDArray[np.uint8]


def published(path: str, content: bytes, folder: Path) -> Archive:
    """An archive whose mirror is a file in the folder."""
    source = folder / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    return Archive(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), (source.as_uri(),))


def drawn(*shape: int, below: int = 256) -> Pixels:
    return np.random.default_rng(shape).integers(0, below, shape, np.uint8)


def assert_data(data: Data, *expected: Any) -> None:
    """Check images and labels of the training split, then of the test split."""
    assert data.scale is not None
    darkest, brightest = float(expected[0].min()), float(expected[0].max())
    for split, images, labels in zip((data.train, data.test), expected[::2], expected[1::2], strict=True):
        found = split.inputs * data.scale.deviation + data.scale.mean
        np.testing.assert_allclose(found, (images - darkest) / (brightest - darkest), atol=1e-5)
        np.testing.assert_array_equal(split.labels, labels)


def test_names_checksums_and_sizes_are_the_published_ones() -> None:
    from trainer.core.torchvision_import import torchvision

    others = torchvision.datasets
    for ours, theirs in ((Mnist, others.MNIST), (FashionMnist, others.FashionMNIST)):
        assert [(archive.path, archive.md5, archive.urls) for archive in ours.archives] == [
            (f"{theirs.__name__}/raw/{name}", md5, tuple(mirror + name for mirror in theirs.mirrors))
            for name, md5 in theirs.resources
        ]
        assert (ours().train_samples, ours().shape, ours().class_count) == (60_000, (1, 28, 28), 10)
    for own, cifar, classes in ((Cifar10, others.CIFAR10, 10), (Cifar100, others.CIFAR100, 100)):
        assert own.archive == Archive(cifar.filename, cifar.tgz_md5, (cifar.url,))
        assert (own().train_samples, own().shape, own().class_count) == (50_000, (3, 32, 32), classes)


# MNIST


def idx(array: Pixels) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def test_files_of_mnist_are_downloaded_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = drawn(40, 28, 28), drawn(40, below=10), drawn(10, 28, 28), drawn(10, below=10)
    archives = [
        published(real.path, gzip.compress(idx(array)), tmp_path / "mirror")
        for real, array in zip(Mnist.archives, arrays, strict=True)
    ]
    monkeypatch.setattr(Mnist, "archives", archives)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not in"):
        Mnist().load(tmp_path / "data")
    assert not (tmp_path / "data").exists()  # loading writes nothing
    Mnist().prepare(tmp_path / "data")
    assert_data(
        Mnist().load(tmp_path / "data"), arrays[0][:, None], arrays[1], arrays[2][:, None], arrays[3]
    )


def test_invalid_content_of_mnist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in (
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "is not an IDX file of bytes"),  # type float32
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], "does not hold 2×28×28 values"),
        (idx(np.zeros(3, np.uint8)) + b"\0", "does not hold 3 values"),
        (b"\0\0\x08\x03\0\0\0\x02", "does not hold"),  # without sizes
    ):
        archive = published("MNIST/raw/file.gz", gzip.compress(content), tmp_path)
        monkeypatch.setattr(Mnist, "archives", (archive,) * 4)
        with pytest.raises(DataError, match=message):
            Mnist().load(tmp_path)


# CIFAR-10


def load_cifar(
    files: Mapping[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Cifar10] = Cifar10
) -> Data:
    """Pack files (name in the archive's folder: content), and load them."""
    inside = kind.test.partition("/")[0]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{inside}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive = published(kind.archive.path, packed.getvalue(), folder / "mirror")
    monkeypatch.setattr(kind, "archive", archive)
    kind().prepare(folder / archive.md5)
    return kind().load(folder / archive.md5)


def python2_pickle(data: Pixels, labels: list[int], **others: list[int]) -> bytes:
    """As Python 2 and numpy 1 write it: with strings of bytes, numbers for booleans, and older names."""
    named = {name.encode(): values for name, values in others.items()}
    pickled = pickletools.optimize(pickle.dumps({b"data": data, b"labels": labels, **named}, 3))
    for new, old in (
        (b"numpy._core.multiarray", b"numpy.core.multiarray"),
        (b"X\2\0\0\0u1\x89\x88", b"U\2u1K\0K\1"),  # dtype("u1", False, True)
    ):
        assert new in pickled
        pickled = pickled.replace(new, old)
    return pickled


def test_batches_of_cifar10_are_read_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = drawn(36, 3, 32, 32), drawn(36, below=10)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    parts = zip(names, np.split(images.reshape(36, 3072), 6), np.split(labels, 6), strict=True)
    batches = [(name, python2_pickle(pixels, of.tolist())) for name, pixels, of in parts]
    # The published archive is not in numerical order either.
    files = {"readme.html": b"<html>", **dict(reversed(batches))}
    data = load_cifar(files, tmp_path, monkeypatch)
    assert_data(data, images[:30], labels[:30], images[30:], labels[30:])
    del files["data_batch_5"]
    with pytest.raises(DataError, match="lacks cifar-10-batches-py/data_batch_5"):
        load_cifar(files, tmp_path, monkeypatch)


def test_labels_of_cifar100_are_the_fine_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, none = drawn(8, 3, 32, 32), drawn(8, below=100), [0] * 4
    train, test = (
        python2_pickle(pixels, none, coarse_labels=none, fine_labels=of.tolist())
        for pixels, of in zip(np.split(images.reshape(8, 3072), 2), np.split(labels, 2), strict=True)
    )
    data = load_cifar({"meta": b"", "test": test, "train": train}, tmp_path, monkeypatch, Cifar100)
    assert_data(data, images[:4], labels[:4], images[4:], labels[4:])


def test_pickles_that_call_functions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = tmp_path / "called"
    by_eval = f"open('{called}', 'w').close()"
    for module, name, text in (("os", "system", f"touch {called}"), ("builtins", "eval", by_eval)):
        hostile = f"c{module}\n{name}\n(V{text}\ntR.".encode()
        with pytest.raises(DataError, match=rf"asks for {module}\.{name},"):
            load_cifar({"data_batch_1": hostile}, tmp_path, monkeypatch)
        assert not called.exists()
        pickle.loads(hostile)
        called.unlink()
