"""Mistakes in reading CIFAR-10: the order of batches and planes, and pickles that call functions."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.unit.dataset_support import Pixels, assert_standardised, publish
from trainer.data.base import DataError
from trainer.data.datasets.cifar10 import Cifar10
from trainer.data.datasets.files import Archive


def python2_pickle(entries: Mapping[str, Pixels | list[int]]) -> bytes:
    """A protocol 2 pickle of {string: array or list of small numbers}, as Python 2 and numpy 1 write it."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # bytes; Python 3 writes text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(value: Pixels) -> bytes:
        shape = number(value.shape[0]) + number(value.shape[1]) + b"\x86"
        dtype = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
        dtype += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85"
        state = b"(" + number(1) + shape + dtype + b"\x89" + string(value.tobytes()) + b"tb"
        return new + string(b"b") + b"\x87R" + state

    body = b""
    for key, value in entries.items():
        listed = isinstance(value, list)
        body += string(key.encode())
        body += b"](" + b"".join(map(number, value)) + b"e" if listed else array(np.asarray(value))
    return b"\x80\x02}(" + body + b"u."


Publish = Callable[[dict[str, bytes]], Path]


@pytest.fixture
def publish_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Pack files (name in the folder: content) as the archive; return a data_dir that holds it."""

    def pack(files: dict[str, bytes]) -> Path:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        archive = publish(Cifar10.archive.path, packed.getvalue(), tmp_path / "mirror")
        monkeypatch.setattr(Cifar10, "archive", archive)
        data_dir = tmp_path / archive.md5
        Cifar10().prepare(data_dir)
        return data_dir

    return pack


def fake_batches(samples: int = 6) -> dict[str, tuple[Pixels, list[int]]]:
    rng = np.random.default_rng(0)
    # The published archive is not in numerical order either.
    order = ["data_batch_4", "test_batch", *(f"data_batch_{number}" for number in (3, 2, 5, 1))]
    return {
        name: (rng.integers(0, 256, (samples, 3072), np.uint8), rng.integers(0, 10, samples).tolist())
        for name in order
    }


def test_batches_are_read_in_the_order_of_their_numbers(publish_cifar10: Publish) -> None:
    batches = fake_batches()
    files = {name: python2_pickle({"data": p, "labels": n}) for name, (p, n) in batches.items()}
    data = Cifar10().load(publish_cifar10({"readme.html": b"<html>", **files}))
    train = [batches[f"data_batch_{number}"] for number in range(1, 6)]
    test_pixels, test_labels = batches["test_batch"]
    planes = np.concatenate([pixels for pixels, _ in train]).reshape(30, 3, 32, 32)
    assert_standardised(data, planes, test_pixels.reshape(6, 3, 32, 32))
    assert data.train.labels.tolist() == [label for _, labels in train for label in labels]
    assert (data.test.labels.tolist(), data.classes) == (test_labels, 10)
    del files["data_batch_5"]
    with pytest.raises(DataError, match="lacks cifar-10-batches-py/data_batch_5"):
        Cifar10().load(publish_cifar10(files))


class Hostile:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize(("protocol", "function"), [(0, os.system), (2, eval), (4, os.system)], ids=str)
def test_pickles_that_call_functions_are_refused(
    publish_cifar10: Publish, tmp_path: Path, function: Callable[..., object], protocol: int
) -> None:
    trace = tmp_path / "called"
    command = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    hostile = pickle.dumps({"data": Hostile(function, command)}, protocol)
    data_dir = publish_cifar10({"data_batch_1": hostile})
    with pytest.raises(DataError, match=rf"asks for \w+\.{function.__name__},"):
        Cifar10().load(data_dir)
    assert not trace.exists()


def test_the_archive_is_that_of_torchvision() -> None:
    from trainer.data.augmentations.torchvision_import import torchvision

    published = torchvision.datasets.CIFAR10
    assert Cifar10.archive == Archive(published.filename, published.tgz_md5, (published.url,))
