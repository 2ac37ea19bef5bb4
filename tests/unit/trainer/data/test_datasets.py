"""Datasets that need no download: pixels, labels, normalisation and reproducibility."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.dataset_support import NOWHERE, assert_ready_for_training, expected
from trainer.data.base import Data, DataError
from trainer.data.datasets import bundled
from trainer.data.datasets.digits import Digits
from trainer.data.datasets.normalise import normalise
from trainer.data.datasets.synthetic import Synthetic
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec

TABLES = ("iris", "wine", "breast_cancer")

# Normalisation


def test_channels_are_normalised_by_the_training_split() -> None:
    rng = np.random.default_rng(1)
    scale = np.array([10, 100, 255]).reshape(3, 1, 1)
    train = (rng.random((700, 3, 20, 20)) * scale).astype(np.uint8)  # more than one block
    test = (rng.random((50, 3, 20, 20)) * scale / 2).astype(np.uint8)
    train_before, test_before = train.copy(), test.copy()
    data = normalise((train, np.zeros(700, int)), (test, np.zeros(50, int)), classes=2)
    assert_ready_for_training(data)
    np.testing.assert_allclose(data.train.inputs, expected(train, train), atol=1e-5)
    np.testing.assert_allclose(data.test.inputs, expected(test, train), atol=1e-5)
    np.testing.assert_array_equal(train, train_before)
    np.testing.assert_array_equal(test, test_before)


def test_constant_channel_becomes_zero() -> None:
    pixels = np.full((4, 1, 2, 2), 7, np.uint8)
    data = normalise((pixels, np.zeros(4, int)), (pixels, np.zeros(4, int)), classes=2)
    np.testing.assert_array_equal(data.train.inputs, 0)


@pytest.mark.parametrize(("low", "high"), [(0, 255), (3, 200)])
def test_unit_scaling_maps_the_training_split_to_0_to_1(low: int, high: int) -> None:
    rng = np.random.default_rng(1)
    train = rng.integers(low, high, (20, 3, 4, 4), endpoint=True, dtype=np.uint8)
    train[0, 0, 0, :2] = low, high
    test = rng.integers(0, 255, (5, 3, 4, 4), dtype=np.uint8)
    labels = np.zeros(20, int)
    data = normalise((train, labels), (test, labels[:5]), classes=2, scaling="unit")
    np.testing.assert_allclose(data.train.inputs, (train - low) / (high - low), rtol=1e-6)
    np.testing.assert_allclose(data.test.inputs, (test - float(low)) / (high - low), rtol=1e-6)
    np.testing.assert_array_equal(data.scale.mean, np.zeros((3, 1, 1)))
    np.testing.assert_array_equal(data.scale.deviation, np.ones((3, 1, 1)))


def test_scaling_changes_the_run_key_unless_it_is_the_default() -> None:
    def key(dataset: object) -> str:
        return RunSpec.model_validate({"strategy": "serial", "dataset": dataset}).key

    assert key({"name": "digits", "scaling": "standardise"}) == key("digits")
    assert key({"name": "digits", "scaling": "unit"}) != key("digits")


@pytest.mark.parametrize("name", ["digits", "synthetic", *TABLES])
def test_datasets_scale_as_asked(name: str) -> None:
    data = DATASETS.parse({"name": name, "scaling": "unit"}).load(NOWHERE)
    assert (data.train.inputs.min(), data.train.inputs.max()) == (0, 1)


# Tables


@pytest.mark.parametrize("name", TABLES)
def test_tables_equal_scikit_learn(name: str) -> None:
    import sklearn.datasets

    dataset = DATASETS.parse(name)
    data, original = dataset.load(NOWHERE), getattr(sklearn.datasets, f"load_{name}")()
    assert_ready_for_training(data)
    assert data.train.inputs.shape == (dataset.train_samples, *dataset.shape)
    assert dataset.class_count == len(original.target_names)
    assert set(data.test.labels) == set(range(dataset.class_count))
    both = [
        np.concatenate([getattr(data.train, part), getattr(data.test, part)])
        for part in ("inputs", "labels")
    ]
    values, low = original.data, original.data.min(axis=0)
    ours = both[0][:, :, 0, 0].astype(np.float64)
    ours = (ours - ours.min(axis=0)) / np.ptp(ours, axis=0)  # without the scale of the columns
    theirs = (values - low) / np.ptp(values, axis=0)
    order, same = np.lexsort(np.round(ours, 4).T), np.lexsort(np.round(theirs, 4).T)
    np.testing.assert_allclose(ours[order], theirs[same], atol=1e-4)
    np.testing.assert_array_equal(both[1][order], original.target[same])


@pytest.mark.parametrize("name", TABLES)
def test_models_for_images_refuse_a_table(name: str) -> None:
    fields = {"strategy": "serial", "dataset": name}
    RunSpec.model_validate({**fields, "model": "mlp"})
    with pytest.raises(ValidationError, match="pixels"):
        RunSpec.model_validate({**fields, "model": "lenet"})


# Digits


def test_digits_equal_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data = Digits().load(NOWHERE)
    assert_ready_for_training(data)
    assert data.train.inputs.shape == (Digits().train_samples, 1, 28, 28) == (1437, 1, 28, 28)
    assert data.test.inputs.shape == (360, 1, 28, 28)

    images = np.concatenate([data.train.inputs, data.test.inputs])[:, 0]
    labels = np.concatenate([data.train.labels, data.test.labels])
    low, high = images.min(), images.max()  # 0 and 16 before normalisation
    images = np.rint((images - low) / (high - low) * 16)
    small = images[:, 3:26:3, 3:26:3]
    np.testing.assert_array_equal(
        images, np.pad(np.kron(small, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    )

    # Every original sample is in exactly one split, with its label.
    original = load_digits()
    ours = np.column_stack([small.reshape(-1, 64), labels])
    theirs = np.column_stack([original.data, original.target])
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert not np.array_equal(ours, theirs)  # shuffled


def test_digits_split_is_fixed() -> None:
    np.random.seed(1)
    first = Digits().load(NOWHERE)
    np.random.seed(2)
    second = Digits().load(NOWHERE)
    np.testing.assert_array_equal(first.train.inputs, second.train.inputs)
    np.testing.assert_array_equal(first.test.labels, second.test.labels)
    # Fixed: another split would make results incomparable with earlier ones.
    assert first.test.labels[:16].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6, 6, 3, 1, 3, 8, 7]


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
        "for name in ('digits', 'synthetic'): DATASETS.parse(name).load(Path())\n"
        "print(*{'torch', 'torchvision', 'sklearn', 'scipy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Synthetic


def nearest_mean_accuracy(data: Data) -> float:
    means = np.stack([data.train.inputs[data.train.labels == k].mean(0) for k in range(data.classes)])
    images = data.test.inputs.reshape(len(data.test.inputs), 1, -1)
    nearest = ((images - means.reshape(1, data.classes, -1)) ** 2).sum(2).argmin(1)
    return float((nearest == data.test.labels).mean())


def test_synthetic_is_learnable_and_harder_with_noise() -> None:
    assert nearest_mean_accuracy(Synthetic().load(NOWHERE)) > 0.95
    hard = nearest_mean_accuracy(Synthetic(noise=12.0).load(NOWHERE))
    assert 0.2 < hard < 0.8  # chance is 0.1


def test_synthetic_depends_only_on_its_parameters() -> None:
    first, again = Synthetic().load(NOWHERE), Synthetic().load(NOWHERE)
    other = Synthetic(data_seed=1).load(NOWHERE)
    np.testing.assert_array_equal(first.train.inputs, again.train.inputs)
    np.testing.assert_array_equal(first.test.inputs, again.test.inputs)
    np.testing.assert_array_equal(first.train.labels, again.train.labels)
    assert not np.array_equal(first.train.labels, other.train.labels)
    assert not np.allclose(first.train.inputs, other.train.inputs)
    assert not np.allclose(first.train.inputs[:512], first.test.inputs)
    larger = Synthetic(samples=4096).load(NOWHERE)
    np.testing.assert_array_equal(larger.test.labels, first.test.labels)


@pytest.mark.parametrize(
    "dataset",
    [
        Synthetic(),
        Synthetic(samples=301, test_samples=7, classes=3, channels=3, height=17, width=5),
        Synthetic(samples=50, classes=2, height=1, width=1),
        Synthetic(samples=40, classes=20, height=2, width=40, noise=0.0),
    ],
    ids=repr,
)
def test_synthetic_has_any_size(dataset: Synthetic) -> None:
    data = dataset.load(NOWHERE)
    assert_ready_for_training(data)
    shape = (dataset.channels, dataset.height, dataset.width)
    assert data.train.inputs.shape == (dataset.train_samples, *shape) == (dataset.samples, *shape)
    assert data.test.inputs.shape == (dataset.test_samples, *shape)
    assert data.classes == dataset.classes
    counts = np.bincount(data.train.labels, minlength=dataset.classes)
    assert counts.max() - counts.min() <= 1


def test_synthetic_without_noise_has_one_smooth_image_per_class() -> None:
    data = Synthetic(samples=60, classes=3, noise=0.0).load(NOWHERE)
    assert len(np.unique(data.train.inputs.reshape(60, -1), axis=0)) == 3
    assert abs(np.diff(data.train.inputs, axis=3)).max() < 1  # neighbouring pixels, deviation 1


def test_synthetic_single_sample() -> None:
    data = Synthetic(samples=1, test_samples=1, height=1, width=1).load(NOWHERE)
    np.testing.assert_array_equal(data.train.inputs, 0)
    assert np.isfinite(data.test.inputs).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {"samples": 0},
        {"test_samples": 0},
        {"classes": 1},
        {"channels": 0},
        {"height": 0},
        {"width": 0},
        {"noise": -0.1},
        {"noise": float("nan")},
        {"data_seed": -1},
        {"samples": 2.5},
        {"smaples": 9},
    ],
    ids=repr,
)
def test_synthetic_rejects(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Synthetic(**parameters)


def test_classes_are_known_before_files_are_read() -> None:
    classes = {name: DATASETS.parse(name).class_count for name in DATASETS.entries}
    assert classes == dict.fromkeys(classes, 10) | {
        "iris": 3,
        "wine": 3,
        "breast_cancer": 2,
        **dict.fromkeys(["pydoc_text", "tiny_shakespeare", "copy", "induction"], 1),
    }
    for dataset in (Digits(), Synthetic(classes=7, samples=70, test_samples=1)):
        assert dataset.class_count == dataset.load(NOWHERE).classes


def test_sizes_are_known_before_files_are_read() -> None:
    sizes = {name: DATASETS.parse(name).train_samples for name in DATASETS.entries}
    assert sizes == {
        "digits": 1437,
        "mnist": 60_000,
        "fashion_mnist": 60_000,
        "cifar10": 50_000,
        "iris": 120,
        "wine": 143,
        "breast_cancer": 456,
        "synthetic": 2048,
        "pydoc_text": 5624,
        "tiny_shakespeare": 15_685,
        "copy": 2048,
        "induction": 2048,
    }
