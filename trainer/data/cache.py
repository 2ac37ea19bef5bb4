"""A dataset in memory, for the ranks of several runs."""

from __future__ import annotations

from pathlib import Path

from trainer.data.base import Data, Dataset


class DatasetCache:
    """Holds the dataset that was loaded last."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._data: Data | None = None

    def load(self, dataset: Dataset, data_dir: Path) -> Data:
        """The dataset, read only if it or its files have changed since the last call. Raises DataError."""
        key = (type(dataset), dataset, *(_version(data_dir / file) for file in dataset.files))
        if self._data is None or key != self._key:
            self._data = None  # so that two datasets never need memory at once
            self._data = dataset.load(data_dir)
            self._key = key
        return self._data

    def clear(self) -> None:
        """Free the memory of the dataset."""
        self._key, self._data = (), None

    @property
    def mb(self) -> float:
        """Memory of the data, in MiB."""
        if self._data is None:
            return 0.0
        splits = (self._data.train, self._data.test)
        return sum(split.nbytes for split in splits) / 2**20


def _version(path: Path) -> tuple[object, ...]:
    """What changes when a file is replaced; only its path if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return (path,)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)
