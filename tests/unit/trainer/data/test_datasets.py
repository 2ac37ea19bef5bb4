"""Mistakes in datasets without downloads: the scaling, pixels, rows, what a seed changes, and the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.data.base import Data, DataError, Scaling
from trainer.data.cache import DatasetCache
from trainer.data.datasets import bundled
from trainer.data.datasets.bundled import bundled_file
from trainer.data.datasets.digits import Digits
from trainer.data.datasets.normalise import normalise
from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.tables import BreastCancer, Iris, Table, Wine
from trainer.spec.registries import DATASETS

NOWHERE = Path("/nonexistent")


@pytest.mark.parametrize("scaling", ["standardise", "unit"])
def test_both_splits_are_scaled_by_the_training_split(scaling: Scaling) -> None:
    low, high = np.array([40, 70, 90]).reshape(3, 1, 1), np.array([200, 100, 90]).reshape(3, 1, 1)
    for samples, side in ((700, 20), (2, 1)):  # several blocks; two values of a channel
        train, test = (
            np.random.default_rng(1).integers(low, high, (count, 3, side, side), np.uint8, endpoint=True)
            for count in (samples, 50)
        )
        train[-1] = high  # the last channel is constant
        train[0, 0] = 40
        labels = np.zeros(samples + 50, np.uint8)
        data = normalise((train, labels[:samples]), (test, labels[samples:]), 2, scaling)
        mean, deviation = (each((0, 2, 3), keepdims=True) for each in (train.mean, train.std))
        deviation[deviation == 0] = 1
        if scaling == "unit":
            mean, deviation = np.float64(40), np.float64(160)
        assert data.scale is not None
        for split, pixels in ((data.train, train), (data.test, test)):
            np.testing.assert_allclose(split.inputs, (pixels - mean) / deviation, atol=1e-5)
            again = split.inputs * data.scale.deviation + data.scale.mean
            np.testing.assert_allclose(again, (pixels - 40.0) / 160, atol=1e-5)
            assert (split.inputs.dtype, split.labels.dtype) == (np.float32, np.int64)
            assert split.inputs.flags.c_contiguous
            assert split.inputs.flags.writeable  # torch.from_numpy warns about others


def test_datasets_scale_as_asked() -> None:
    for name in ("digits", "synthetic", "iris", "wine", "breast_cancer"):
        data = DATASETS.parse({"name": name, "scaling": "unit"}).load(NOWHERE)
        assert (data.train.inputs.min(), data.train.inputs.max()) == (0, 1)


def rows(data: Data) -> np.ndarray:
    """All samples of both splits with their labels."""
    splits = (data.train, data.test)
    inputs = np.concatenate([split.inputs.reshape(len(split.labels), -1) for split in splits])
    return np.column_stack([inputs, np.concatenate([split.labels for split in splits])])


def in_order(table: np.ndarray) -> np.ndarray:
    """The rows of a table in one order, each column from 0 to 1."""
    spans = np.ptp(table, axis=0)
    found = np.round((table - table.min(axis=0)) / np.where(spans, spans, 1), 4)
    return found[np.lexsort(found.T)]


@pytest.mark.parametrize("table", [Iris(), Wine(), BreastCancer()], ids=lambda table: table.file)
def test_tables_have_the_rows_of_their_files(table: Table) -> None:
    data = table.load(NOWHERE)
    expected = np.loadtxt(bundled_file(table.file), delimiter=",", skiprows=1)
    np.testing.assert_allclose(in_order(rows(data)), in_order(expected), atol=2e-4)
    assert len(data.test.labels) == len(expected) // 5
    assert {*data.test.labels.tolist()} == {*range(table.kinds)}  # so the rows were shuffled
    np.testing.assert_allclose(data.train.inputs.std(axis=0), 1, atol=1e-3)  # each column by itself


def test_digits_are_enlarged_with_a_border_and_split_as_ever() -> None:
    data = Digits(scaling="unit").load(NOWHERE)
    table = np.loadtxt(bundled_file("digits.csv.gz"), delimiter=",")
    enlarged = np.kron(table[:, :-1].reshape(-1, 8, 8), np.ones((1, 3, 3)))
    padded = np.pad(enlarged, ((0, 0), (2, 2), (2, 2))).reshape(-1, 28 * 28)
    np.testing.assert_array_equal(in_order(rows(data)), in_order(np.c_[padded, table[:, -1]]))
    # Another split would make results incomparable with earlier ones.
    assert len(data.test.labels) == 360
    assert data.test.labels[:16].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6, 6, 3, 1, 3, 8, 7]


def test_scikit_learn_is_not_imported_and_its_absence_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    Digits().load(NOWHERE)
    assert "sklearn" not in sys.modules  # it would take 0.7 s on every rank
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DataError, match=r"digits\.csv\.gz is absent: pip install"):
        Digits().load(NOWHERE)
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits().load(NOWHERE)


# Synthetic


def test_synthetic_has_a_smooth_picture_of_each_class_and_noise() -> None:
    data = Synthetic(noise=3.0).load(NOWHERE)
    pictures = np.stack([data.train.inputs[data.train.labels == each].mean(0) for each in range(10)])
    noise = data.test.inputs - pictures[data.test.labels]
    assert noise.var() / data.test.inputs.var() == pytest.approx(9 / 10, rel=0.02)
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


def test_synthetic_has_any_shape_and_equal_classes() -> None:
    for samples, classes, shape in ((301, 3, (3, 17, 5)), (40, 20, (1, 2, 40)), (1, 10, (1, 1, 1))):
        size = dict(zip(("channels", "height", "width"), shape, strict=True))
        data = Synthetic(samples=samples, test_samples=7, classes=classes, **size).load(NOWHERE)
        assert (data.train.inputs.shape, data.test.inputs.shape) == ((samples, *shape), (7, *shape))
        assert np.isfinite(data.test.inputs).all()
        assert np.ptp(np.bincount(data.train.labels, minlength=classes)) <= 1


def test_the_cache_reads_again_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "files", ("file",))
    file, cache = tmp_path / "file", DatasetCache()
    found = [cache.load(Iris(), tmp_path)]
    assert cache.load(Iris(), tmp_path) is found[0]
    assert cache.mb == pytest.approx((150 * 4 * 4 + 150 * 8) / 2**20)
    for at in (5, 6):  # the same size, and another time
        file.write_text("one")
        os.utime(file, (at, at))
        found.append(cache.load(Iris(), tmp_path))
    file.with_name("other").write_text("two")
    os.utime(file.with_name("other"), (6, 6))
    file.with_name("other").replace(file)
    found += [cache.load(each, tmp_path) for each in (Iris(), Iris(scaling="unit"), Wine(scaling="unit"))]
    assert len({id(each) for each in found}) == 6
    cache.clear()
    assert cache.mb == 0
