"""The handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.data.base import Data, ScaledDataset
from trainer.data.datasets.bundled import bundled_file
from trainer.data.datasets.normalise import normalise

_TRAIN_SAMPLES = 1437  # four fifths


class Digits(ScaledDataset):
    """Handwritten digits of scikit-learn: 1,437 training and 360 test images, 1×28×28; no download.

    Each of the original 8×8 pixels becomes 3×3, with a border of 2, so that models for MNIST fit. The
    split is the same in every run, whatever its seed.

    E. Alpaydin, C. Kaynak, "Optical recognition of handwritten digits" (the test part), UCI Machine
    Learning Repository, 1998; as in `sklearn.datasets.load_digits`.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, 28, 28

    @property
    def train_samples(self) -> int:
        return _TRAIN_SAMPLES

    @property
    def class_count(self) -> int:
        return 10

    def load(self, data_dir: Path) -> Data:
        table = np.loadtxt(
            bundled_file("digits.csv.gz"), np.uint8, delimiter=","
        )  # 64 pixels and the label
        # Shuffled, because the file is ordered by writer. The seed is fixed, because accuracies are
        # comparable only on the same test split.
        table = np.random.default_rng(0).permutation(table)
        pixels, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
        pixels = pixels.repeat(3, axis=2).repeat(3, axis=3)
        pixels = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)))
        train, test = slice(_TRAIN_SAMPLES), slice(_TRAIN_SAMPLES, None)
        return normalise((pixels[train], labels[train]), (pixels[test], labels[test]), 10, self.scaling)
