"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from trainer.data.base import Data, DataError, ScaledDataset
from trainer.data.datasets.files import Archive
from trainer.data.datasets.normalise import normalise

_Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


class Cifar10(ScaledDataset):
    """Photographs: 50,000 training and 10,000 test images, 3×32×32 (Krizhevsky 2009).

    A. Krizhevsky, "Learning multiple layers of features from tiny images", technical report,
    University of Toronto, 2009.
    """

    archive: ClassVar[Archive] = Archive(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    )
    train: ClassVar[tuple[str, ...]] = tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6))
    test: ClassVar[str] = "cifar-10-batches-py/test_batch"
    labels: ClassVar[bytes] = b"labels"
    classes: ClassVar[int] = 10

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, 32, 32

    @property
    def train_samples(self) -> int:
        return 50_000

    @property
    def class_count(self) -> int:
        return self.classes

    @property
    def files(self) -> tuple[str, ...]:
        return (self.archive.path,)

    def prepare(self, data_dir: Path) -> None:
        self.archive.ensure(data_dir)

    def load(self, data_dir: Path) -> Data:
        batches = self._batches(data_dir)
        images = np.concatenate([batches[name][0] for name in self.train])
        labels = np.concatenate([batches[name][1] for name in self.train])
        test = batches[self.test]
        del batches  # the training images are in `images` now; float32 takes four times their memory
        return normalise((images, labels), test, classes=self.classes, scaling=self.scaling)

    def _batches(self, data_dir: Path) -> dict[str, _Batch]:
        """All batches by name, read in one pass: seeking back would decompress the archive again."""
        batches, wanted = dict[str, _Batch](), {*self.train, self.test}
        with self.archive.open_verified(data_dir) as file, tarfile.open(fileobj=file, mode="r|gz") as tar:
            for member in tar:
                if member.name in wanted and (batch := tar.extractfile(member)):
                    batches[member.name] = _read_batch(batch, self.labels)
        if missing := wanted - batches.keys():
            raise DataError(f"{data_dir / self.archive.path} lacks {', '.join(sorted(missing))}")
        return batches


class Cifar100(Cifar10):
    """Photographs of 100 classes: 50,000 training and 10,000 test images, 3×32×32 (Krizhevsky 2009).

    The classes are the fine ones, not their 20 superclasses. Source: see `cifar10`.
    """

    archive: ClassVar[Archive] = Archive(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    )
    train: ClassVar[tuple[str, ...]] = ("cifar-100-python/train",)
    test: ClassVar[str] = "cifar-100-python/test"
    labels: ClassVar[bytes] = b"fine_labels"
    classes: ClassVar[int] = 100


def _read_batch(file: IO[bytes], labels: bytes) -> _Batch:
    """Images, shape (samples, 3, 32, 32), and labels, shape (samples,), of one pickled batch.

    A batch is a dictionary that Python 2 pickled, so its strings are bytes. Each row of its data is
    1024 red, 1024 green and 1024 blue values. Source: www.cs.toronto.edu/~kriz/cifar.html.
    """
    batch = _ArrayUnpickler(file, encoding="bytes").load()
    return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[labels], np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles only arrays and plain values, since a pickle may otherwise call any function."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ARRAY_PARTS[module, name]
        except KeyError:
            raise DataError(
                f"a batch asks for {module}.{name}, which no array needs: the file may be hostile"
            ) from None


def _new_array(*_: object) -> npt.NDArray[np.uint8]:
    """Replaces numpy's private `_reconstruct`, whose module moves: an array for the state to fill."""
    return np.empty(0, np.uint8)


def _new_dtype(name: bytes, align: int, copy: int) -> np.dtype[Any]:
    """Replaces `numpy.dtype`, which in numpy 2.4.0 to 2.4.4 warns that 0 and 1 are not booleans."""
    return np.dtype(name.decode(), align=bool(align), copy=bool(copy))


_ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _new_dtype,
}
