"""Small tables that come with scikit-learn: measurements of things, and their kinds."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from trainer.data.base import Data, ScaledDataset
from trainer.data.datasets.bundled import bundled_file
from trainer.data.datasets.normalise import normalise


class Table(ScaledDataset):
    """A table of numbers with a class per row. A column is a channel, and so is scaled by itself.

    A fifth of the rows is the test split, the same in every run, whatever its seed.
    """

    file: ClassVar[str]
    rows: ClassVar[int]
    columns: ClassVar[int]
    kinds: ClassVar[int]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.columns, 1, 1

    @property
    def train_samples(self) -> int:
        return self.rows - self.rows // 5

    @property
    def class_count(self) -> int:
        return self.kinds

    def load(self, data_dir: Path) -> Data:
        # The first line has the sizes and the names of the classes.
        table = np.loadtxt(bundled_file(self.file), np.float32, delimiter=",", skiprows=1)
        # Shuffled, because the files are ordered by class.
        table = np.random.default_rng(0).permutation(table)
        values, labels = table[:, :-1, np.newaxis, np.newaxis], table[:, -1].astype(np.int64)
        train, test = slice(self.train_samples), slice(self.train_samples, None)
        return normalise(
            (values[train], labels[train]), (values[test], labels[test]), self.kinds, self.scaling
        )


class Iris(Table):
    """Irises of 3 species: 120 training and 30 test samples of 4 numbers; no download (Fisher 1936)."""

    file: ClassVar[str] = "iris.csv"
    rows: ClassVar[int] = 150
    columns: ClassVar[int] = 4
    kinds: ClassVar[int] = 3


class Wine(Table):
    """Wines of 3 growers: 143 training and 35 test samples of 13 numbers; no download (Aeberhard 1994)."""

    file: ClassVar[str] = "wine_data.csv"
    rows: ClassVar[int] = 178
    columns: ClassVar[int] = 13
    kinds: ClassVar[int] = 3


class BreastCancer(Table):
    """Tumours of 2 kinds: 456 training and 113 test samples of 30 numbers; no download (Street 1993)."""

    file: ClassVar[str] = "breast_cancer.csv"
    rows: ClassVar[int] = 569
    columns: ClassVar[int] = 30
    kinds: ClassVar[int] = 2
