"""MNIST and Fashion-MNIST, which share their format, shapes and file names."""

from __future__ import annotations

import gzip
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainer.data.base import Data, DataError, ScaledDataset
from trainer.data.datasets.files import Archive
from trainer.data.datasets.normalise import normalise


class _IdxDataset(ScaledDataset):
    """60 000 training and 10 000 test images, 1×28×28, 10 classes, in torchvision's file layout."""

    archives: ClassVar[tuple[Archive, ...]]  # images and labels of train, then of test

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, 28, 28

    @property
    def train_samples(self) -> int:
        return 60_000

    @property
    def class_count(self) -> int:
        return 10

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(archive.path for archive in self.archives)

    def prepare(self, data_dir: Path) -> None:
        for archive in self.archives:
            archive.ensure(data_dir)

    def load(self, data_dir: Path) -> Data:
        images, labels, test_images, test_labels = (
            _read_idx(archive, data_dir) for archive in self.archives
        )
        return normalise((images[:, None], labels), (test_images[:, None], test_labels), 10, self.scaling)


def _archives(folder: str, mirrors: tuple[str, ...], md5s: dict[str, str]) -> tuple[Archive, ...]:
    return tuple(
        Archive(f"{folder}/raw/{name}", md5, tuple(f"{mirror}{name}" for mirror in mirrors))
        for name, md5 in md5s.items()
    )


class Mnist(_IdxDataset):
    """Handwritten digits: 60,000 training and 10,000 test images, 1×28×28 (LeCun et al. 1998).

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE 86(11), 1998.
    """

    archives: ClassVar[tuple[Archive, ...]] = _archives(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    )


class FashionMnist(_IdxDataset):
    """Clothing: 60,000 training and 10,000 test images, 1×28×28 (Xiao et al. 2017).

    H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
    learning algorithms", arXiv:1708.07747, 2017.
    """

    archives: ClassVar[tuple[Archive, ...]] = _archives(
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    )


def _read_idx(archive: Archive, data_dir: Path) -> npt.NDArray[np.uint8]:
    """The array in a gzipped IDX file of bytes.

    The format: two zero bytes, the type (8 is uint8), the number of dimensions, each dimension as a
    big-endian uint32, then the values in C order. Source: the MNIST page, yann.lecun.com/exdb/mnist.
    The array is a read-only view of the decompressed bytes.
    """
    content = gzip.decompress(archive.read(data_dir))
    if not content.startswith(b"\0\0\x08"):
        raise DataError(f"{data_dir / archive.path} is not an IDX file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(shape) != dimensions or len(content) - start != prod(shape):
        raise DataError(f"{data_dir / archive.path} does not hold {'×'.join(map(str, shape))} values")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
