"""Mistakes in datasets without downloads: the scaling, pixels, rows, what a seed changes, and the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.dataset_support import NOWHERE, assert_standardised
from trainer.data.base import Data, DataError, Scaling
from trainer.data.cache import DatasetCache
from trainer.data.datasets import bundled
from trainer.data.datasets.bundled import bundled_file
from trainer.data.datasets.digits import Digits
from trainer.data.datasets.normalise import normalise
from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.tables import Iris, Table, Wine
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec

TABLES = ("iris", "wine", "breast_cancer")


@pytest.mark.parametrize("scaling", ["standardise", "unit"])
@pytest.mark.parametrize(
    ("samples", "side"), [(700, 20), (2, 1)]
)  # several blocks; two values of a channel
def test_both_splits_are_scaled_by_the_training_split(scaling: Scaling, samples: int, side: int) -> None:
    rng = np.random.default_rng(1)
    low, high = np.array([40, 70, 90]).reshape(3, 1, 1), np.array([200, 100, 90]).reshape(3, 1, 1)
    train, test = (
        rng.integers(low, high, (count, 3, side, side), np.uint8, endpoint=True) for count in (samples, 50)
    )
    train[-1] = high  # the last channel is constant
    train[0, 0] = 40
    before, labels = (train.copy(), test.copy()), np.zeros(samples + 50, int)
    data = normalise((train, labels[:samples]), (test, labels[samples:]), 2, scaling)
    if scaling == "standardise":
        assert_standardised(data, train, test)
    else:
        np.testing.assert_allclose(data.test.inputs, (test - 40.0) / 160, rtol=1e-6)
    assert data.scale is not None
    for split, pixels in ((data.train, train), (data.test, test)):
        found = split.inputs * data.scale.deviation + data.scale.mean
        np.testing.assert_allclose(found, (pixels - 40.0) / 160, atol=1e-5)
    assert all(map(np.array_equal, (train, test), before))


@pytest.mark.parametrize("name", ["digits", "synthetic", *TABLES])
def test_datasets_scale_as_asked(name: str) -> None:
    data = DATASETS.parse({"name": name, "scaling": "unit"}).load(NOWHERE)
    assert (data.train.inputs.min(), data.train.inputs.max()) == (0, 1)
    keys = [
        RunSpec.model_validate({"strategy": "serial", "model": "mlp", "dataset": dataset}).key
        for dataset in (name, {"name": name, "scaling": "standardise"}, {"name": name, "scaling": "unit"})
    ]
    assert keys[0] == keys[1] != keys[2]


def rows(data: Data) -> np.ndarray:
    """All samples of both splits with their labels, each column from 0 to 1, in one order."""
    inputs, labels = (
        np.concatenate([getattr(split, part) for split in (data.train, data.test)])
        for part in ("inputs", "labels")
    )
    return in_order(inputs.reshape(len(labels), -1), labels)


def in_order(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    spans = np.ptp(inputs, axis=0)
    scaled = (inputs.astype(float) - inputs.min(axis=0)) / np.where(spans, spans, 1)
    found = np.column_stack([np.round(scaled, 4), labels])
    return found[np.lexsort(found.T)]


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_rows_of_their_files(name: str) -> None:
    table = DATASETS.parse(name)
    assert isinstance(table, Table)
    header, *lines = bundled_file(table.file).read_text().splitlines()
    count, columns, *kinds = header.split(",")
    assert (table.rows, table.columns, table.kinds) == (int(count), int(columns), len(kinds))
    data, original = table.load(NOWHERE), np.array([[*map(float, line.split(","))] for line in lines])
    np.testing.assert_allclose(rows(data), in_order(original[:, :-1], original[:, -1]), atol=2e-4)
    assert len(data.train.labels) == table.train_samples == len(lines) - len(lines) // 5
    assert {*data.test.labels.tolist()} == {*range(table.kinds)}  # so the rows were shuffled
    assert_standardised(data, data.train.inputs, data.test.inputs)  # each column by itself
    with pytest.raises(ValidationError, match="pixels"):
        RunSpec.model_validate({"strategy": "serial", "dataset": name, "model": "lenet"})


def test_digits_are_enlarged_with_a_border_and_split_as_ever() -> None:
    data = Digits(scaling="unit").load(NOWHERE)
    assert (len(data.train.labels), len(data.test.labels)) == (Digits().train_samples, 360) == (1437, 360)
    images = np.concatenate([data.train.inputs, data.test.inputs])[:, 0] * 16
    small = np.rint(images[:, 3:26:3, 3:26:3])
    enlarged = np.pad(np.kron(small, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    np.testing.assert_allclose(images, enlarged, atol=1e-4)
    table = np.loadtxt(bundled_file("digits.csv.gz"), delimiter=",")
    labels = np.concatenate([data.train.labels, data.test.labels])
    np.testing.assert_array_equal(
        in_order(small.reshape(-1, 64), labels), in_order(table[:, :-1], table[:, -1])
    )
    # Another split would make results incomparable with earlier ones.
    assert data.test.labels[:16].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6, 6, 3, 1, 3, 8, 7]


def test_data_of_scikit_learn_that_are_absent_name_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits().load(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    with pytest.raises(DataError, match=r"digits\.csv\.gz is absent"):
        Digits().load(tmp_path)


def test_loading_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys; from pathlib import Path; from trainer.spec.registries import DATASETS\n"
        "for name in DATASETS.entries: DATASETS.load(name)\n"
        "for name in ('iris', 'synthetic'): DATASETS.parse(name).load(Path())\n"
        "print(*{'torch', 'torchvision', 'sklearn', 'scipy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Synthetic


def nearest_mean_accuracy(data: Data) -> float:
    train, test = (split.inputs.reshape(len(split.labels), -1) for split in (data.train, data.test))
    means = np.stack([train[data.train.labels == label].mean(0) for label in range(data.classes)])
    nearest = ((test[:, None] - means) ** 2).sum(2).argmin(1)
    return float((nearest == data.test.labels).mean())


def test_synthetic_is_learnable_and_harder_with_noise() -> None:
    assert nearest_mean_accuracy(Synthetic().load(NOWHERE)) > 0.95
    assert 0.2 < nearest_mean_accuracy(Synthetic(noise=12.0).load(NOWHERE)) < 0.8  # chance is 0.1
    plain = Synthetic(samples=60, classes=3, noise=0.0).load(NOWHERE).train.inputs
    assert len(np.unique(plain.reshape(60, -1), axis=0)) == 3
    assert abs(np.diff(plain, axis=3)).max() < 1  # neighbouring pixels, deviation 1


def test_a_seed_draws_the_test_split_whatever_the_training_split_is() -> None:
    first, other, larger = (
        Synthetic(data_seed=seed, samples=samples).load(NOWHERE)
        for seed, samples in ((0, 300), (1, 300), (0, 600))
    )
    assert not np.array_equal(first.train.labels, other.train.labels)
    assert not np.allclose(first.train.inputs, other.train.inputs)
    np.testing.assert_array_equal(larger.test.labels, first.test.labels)
    assert np.corrcoef(larger.test.inputs.ravel(), first.test.inputs.ravel())[0, 1] > 0.999
    assert abs(np.corrcoef(first.train.inputs.ravel(), first.test.inputs[:300].ravel())[0, 1]) < 0.1


@pytest.mark.parametrize(
    "sizes",
    [
        {"samples": 301, "test_samples": 7, "classes": 3, "channels": 3, "height": 17, "width": 5},
        {"samples": 40, "classes": 20, "height": 2, "width": 40, "noise": 0.0},
        {"samples": 1, "test_samples": 1, "height": 1, "width": 1},
    ],
    ids=str,
)
def test_synthetic_has_any_size_and_equal_classes(sizes: dict[str, Any]) -> None:
    dataset = Synthetic.model_validate(sizes)
    data = dataset.load(NOWHERE)
    shape = (dataset.channels, dataset.height, dataset.width)
    assert data.train.inputs.shape == (dataset.train_samples, *dataset.shape) == (sizes["samples"], *shape)
    assert data.test.inputs.shape == (dataset.test_samples, *shape)
    assert np.isfinite(data.test.inputs).all()
    assert np.ptp(np.bincount(data.train.labels, minlength=dataset.classes)) <= 1
    assert dataset.class_count == data.classes == dataset.classes


def test_sizes_are_known_before_files_are_read() -> None:
    """Samples, classes, and scores for each target."""
    known = {name: DATASETS.parse(name) for name in DATASETS.entries}
    assert {name: (each.train_samples, each.class_count, each.outputs) for name, each in known.items()} == {
        "digits": (1437, 10, 10),
        "mnist": (60_000, 10, 10),
        "fashion_mnist": (60_000, 10, 10),
        "cifar10": (50_000, 10, 10),
        "iris": (120, 3, 3),
        "wine": (143, 3, 3),
        "breast_cancer": (456, 2, 2),
        "synthetic": (2048, 10, 10),
        "pydoc_text": (5624, 1, 97),
        "tiny_shakespeare": (15_685, 1, 97),
        "copy": (2048, 1, 16),
        "induction": (2048, 1, 32),
    }


# Cache


def test_the_cache_reads_again_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    monkeypatch.setattr(Table, "files", ("file",))
    cache = DatasetCache()

    def load(dataset: Table) -> Data:
        return cache.load(dataset, tmp_path)

    first = load(Iris())
    assert load(Iris()) is first
    assert cache.mb == pytest.approx((150 * 4 * 4 + 150 * 8) / 2**20)
    file.write_text("one")
    second = load(Iris())
    file.with_name("other").write_text("two")
    file.with_name("other").replace(file)
    third = load(Iris())
    others = [load(Iris(scaling="unit")), load(Wine(scaling="unit"))]
    assert len({id(each) for each in (first, second, third, *others)}) == 5
    cache.clear()
    assert cache.mb == 0
