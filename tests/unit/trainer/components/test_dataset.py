"""Mistakes in datasets: laws that one breaks, what is refused of users', and what a run knows of others."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from torch.utils.data import IterableDataset

from tests.support.laws import assert_faults, declaring, failing, findings, imported, refused
from trainer.components.dataset import DatasetKind, ImportedDataset, digest
from trainer.components.facts import Source
from trainer.components.kind import Elsewhere, On
from trainer.components.parameters import ParameterFailure
from trainer.data.base import Data, DataError, Dataset, Split
from trainer.data.datasets import user_files

Make = Callable[..., Any]
PLACE = Source(module="mine.py", attribute="it")


def stating(load: Callable[[], Data], **stated: Any) -> type[Dataset]:
    """A subclass that states this of the samples that it loads."""
    members = {name: property(lambda self, value=value: value) for name, value in stated.items()}
    return declaring(Dataset, load=lambda self, data_dir: load(), **members)  # type: ignore[no-any-return]


def changed(change: Callable[[Data], Any]) -> DatasetKind:
    """A dataset whose samples are changed."""

    def load() -> Data:
        inputs = np.random.default_rng(0).random((30, 4), np.float32)
        splits = [Split(each, np.arange(len(each)) % 2) for each in (inputs[:20], inputs[20:])]
        data = Data(*splits, classes=2, scale=None)
        return change(data) or data

    return DatasetKind(stating(load, train_samples=20, shape=(4,), class_count=2)())


def putting(split: str, what: str, at: Any, value: Make) -> DatasetKind:
    return changed(lambda data: getattr(getattr(data, split), what).__setitem__(at, value()))


def cut(inputs: int, labels: int, tests: int = 10) -> DatasetKind:
    def first(split: Split, inputs: int, labels: int) -> Split:
        return Split(split.inputs[:inputs], split.labels[:labels])

    return changed(lambda of: Data(first(of.train, inputs, labels), first(of.test, tests, tests), 2, None))


def common(same: int) -> DatasetKind:
    """Of 100 samples for tests, so many are in both splits."""
    inputs = np.arange(1000, dtype=np.float32)[:, None]
    of = (inputs[:900], inputs[900 - same : 1000 - same])
    return changed(lambda _: Data(*(Split(each, np.zeros(len(each), np.int64)) for each in of), 1, None))


COUNT = count()
FAULTS = {
    "runs: both splits.*ZeroDivisionError": changed(lambda data: 1 / 0),
    "sizes: 9 training.*20 inputs, 9 labels": cut(20, 9),
    "sizes: 20 training and 0 test.*: samples in the test split: none": cut(20, 20, 0),
    "stated: 10 training.*samples 10": cut(10, 10),
    "stated: 20 training.*classes 3": changed(lambda data: Data(data.train, data.test, 3, None)),
    "labels: 2 of training sample 7": putting("train", "labels", 7, lambda: 2),
    "numbers: nan in sample 3, column 1": putting("test", "inputs", (3, 1), lambda: np.nan),
    "again: inputs of training sample 3 when glob.*: use": putting("train", "inputs", 3, np.random.rand),
    "again: inputs of training sample 3 in a second call": putting("train", "inputs", 3, COUNT.__next__),
    r"apart: 6 of 100 \(6 %\), such as test sample 0, which is training sample 894": common(6),
}


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"process"})
    assert "other samples" in str(changed(lambda data: None).process(Elsewhere(digest="other")))
    (apart,) = findings(common(5), "apart").values()
    assert (apart.status, "5 of 100 (5 %)" in apart.reason) == ("note", True)


def kind_of(called: Any, **parameters: Any) -> DatasetKind:
    """A dataset as a sweep is loaded."""
    kind = DatasetKind(DatasetKind.adapt(called, parameters, PLACE), On(loading=True))
    kind.load()
    return kind


def load(called: Any, **parameters: Any) -> Data:
    return kind_of(called, **parameters).data


def good(samples: int = 60, classes: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, 4)), np.arange(samples) % classes


def labelled(*labels: int) -> Make:
    return lambda: (np.zeros((len(labels), 3)), np.array(labels))


def with_value(value: Any, at: Any = (slice(5, 7), ..., -1), kind: Any = float, of: Any = (3,)) -> Make:
    """Ones, with another value in some places of the inputs."""
    inputs = np.ones((9, *of), kind)
    inputs[at] = value
    return lambda: (inputs, np.zeros(9, int))


class Named(list[Any]):
    classes = ("a", "b")


def test_data_that_is_no_dataset_is_described() -> None:
    bunch = declaring(dict)(data=1, target=2)
    type(bunch).__name__ = "Bunch"
    forms = {
        "item 0 | (3,) | item 5 | (4,)": lambda: [(np.zeros(3 + (at > 4)), 0) for at in range(9)],
        "item 0 | tuple and length 3 | pair": lambda: [(np.zeros(3), 0, 1)] * 9,
        "Own | map-style": declaring(IterableDataset, __iter__=None),
        "data, target | pair of arrays (inputs, targets) | return_X_y: true": lambda: bunch,
        "(list, list) | np.array": lambda: ([[0.5]] * 9, [0] * 9),
        "4 arrays | `train`": lambda: (*good(), *good()),
        "one array | (60, 4)": lambda: good()[0],
        "no samples": lambda: (np.zeros((0, 3)), np.zeros(0, int)),
        "9 inputs | 8 targets": lambda: (np.zeros((9, 3)), np.zeros(8, int)),
        "first dimension": lambda: (np.zeros(()), np.zeros(())),
        "(3,) | (4,)": lambda train: (np.zeros((9, 3 if train else 4)), np.zeros(9, int)),
        "it has 1 samples": lambda: good(1),
    }
    numbers = {
        "inputs | nan in sample 5, column 2, the first of 2 in 2 samples": with_value(np.nan),
        "nan in sample 5, column 2; expected": with_value(np.nan, (5, 2)),
        "infinite | sample 5, index [0, 0, 2] | of 12 in 2 samples": with_value(np.inf, of=(2, 3, 3)),
        "targets | nan in sample 0, column 0": lambda: (*good(9)[:1], np.full((9, 1), np.nan)),
        "inputs in float32 | inf in sample 5, column 2": with_value(1e300),
        "<U4 | 'word' in sample 0, column 0 | numbers": with_value("word", ..., "<U4"),
        "object | 'missing' in sample 4, column 1": with_value("missing", (4, 1), object),
        "hold 9223372036854775808 in sample 4, column 1 | int64": with_value(2**63, (4, 1), np.uint64),
        "sample 1 has the label -3, the first of 2; allowed: 0 to 999, or float": labelled(0, -3, -2),
        "sample 2 has the label 1000;": labelled(0, 999, 1000),
        "sample 1 has the label 2; allowed: 0 to 1": lambda: Named([(np.zeros(3), 0), (np.zeros(3), 2)]),
    }
    assert failing(forms | numbers, load) == {}
    assert load(labelled(0, 999)).classes == 1000
    assert load(lambda: Named([(np.zeros(3), 0)] * 3)).classes == 2


def test_a_share_of_the_samples_is_the_test_split() -> None:
    """It is rounded, and each split has a sample. Both keep the order of the samples."""
    for of, share, tests in ((10, 0.25, 2), (10, 0.26, 3), (10, 0.01, 1), (10, 0.99, 9), (2, 0.5, 1)):
        samples = np.arange(of)[:, None], np.zeros(of, int)
        data = load(lambda samples=samples: samples, test_share=share, split_seed=3)
        train, test = data.train.inputs[:, 0].tolist(), data.test.inputs[:, 0].tolist()
        assert (len(train), len(test)) == (of - tests, tests)
        assert (sorted(train), sorted(test), sorted(train + test)) == (train, test, [*range(of)])
        assert tests == of - 1 or test == sorted(np.random.default_rng(3).permutation(of)[:tests])
    for name, value in (("test_share", 0), ("test_share", 1), ("test_share", True), ("split_seed", -1)):
        with pytest.raises(ParameterFailure, match=name):
            load(good, **{name: value})


def test_the_samples_of_a_dataset() -> None:
    """Copies in types of torch, with the classes of both splits, and the pixels of images from 0 to 1."""
    inputs, labels = np.arange(24).reshape(4, 6), np.array([0, 1, 0, 1])
    data = load(lambda train: (inputs, labels if train else labels + 1))
    inputs[:] = 0
    labels[:] = 9
    assert (data.train.inputs[-1, -1], data.train.labels.tolist(), data.classes) == (23, [0, 1, 0, 1], 3)
    assert data.scale is None

    images = np.linspace(-1, 3, 2 * 3 * 4, dtype=np.float64).reshape(2, 1, 3, 4)
    data = load(lambda train: (images, np.zeros((2, 1))))
    assert (data.train.inputs.dtype, data.classes, data.train.labels.tolist()) == (np.float32, 1, [0, 0])
    pixels = data.train.inputs * data.scale.deviation + data.scale.mean  # type: ignore[union-attr]
    assert (pixels.min(), pixels.max()) == (0, pytest.approx(1))


def test_the_digest_is_that_of_both_splits_with_their_types() -> None:
    def split(inputs: Any, label: int = 0) -> Split:
        return Split(inputs, np.full(2, label))

    zeros = np.zeros((2, 3), np.float32)
    others = [split(each) for each in (zeros, zeros + 1, zeros.astype(int), zeros[:, :2])]
    pairs = [*((split(zeros), other) for other in (*others, split(zeros, 1))), (others[1], others[0])]
    assert len({digest(Data(*pair, 2, None)) for pair in pairs}) == len(pairs)


def test_samples_of_a_subclass_are_those_that_it_states() -> None:
    def of(kind: Any = np.float32, **test: Any) -> Any:
        both = {"inputs": np.ones((9, 3), kind), "labels": np.arange(9) % 2}
        data = Data(Split(**both), Split(**{**both, **test}), 2, None)
        return stating(lambda: data, train_samples=9, shape=(3,), class_count=2)

    cases = {
        "test inputs | nan in sample 0, column 0": of(inputs=np.full((9, 3), np.nan, np.float32)),
        "2 of test sample 0, the first of 9 | 0 to 1": of(labels=np.full(9, 2)),
        "type int64 | type float32, as stated": of(kind=int),
    }
    assert failing(cases, kind_of) == {}


def test_what_a_run_knows_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest and what it states; samples and labels go to other trials."""
    monkeypatch.setattr(Source, "load", lambda self: good)
    kind = kind_of(good)
    known = {**PLACE.model_dump(), **kind.facts()}
    stated = imported(ImportedDataset, known)
    assert (stated.train_samples, stated.shape, stated.input_type) == (48, (4,), "float32")
    assert (stated.class_count, stated.outputs, stated.target_shape, stated.files) == (3, 3, (), ())
    assert stated.imported.key_fields == {"code": "", "data": kind.digest()}
    np.testing.assert_array_equal(stated.load(Path()).train.inputs, kind.data.train.inputs)
    for error, called in (("gives other", lambda: good(59)), (".*ZeroDivisionError", lambda: 1 / 0)):
        monkeypatch.setattr(Source, "load", lambda self, called=called: called)
        with pytest.raises(DataError, match=f"it: {error}"):
            imported(ImportedDataset, known).load(Path())
    for wrong in ({"files": ["../one"]}, {"files": ["/one"]}, {"class_count": 1001}, {"train_samples": 0}):
        with pytest.raises(ValidationError, match=f"imported.{next(iter(wrong))}"):
            imported(ImportedDataset, {**known, **wrong})

    for most, few in ((32 * 2**20, 17), (3 * 24, 3)):  # bytes; a sample has 24
        monkeypatch.setattr("trainer.components.dataset.MAX_SAMPLES", most)
        arrays = np.load(io.BytesIO(kind.samples()))
        assert [len(arrays[name]) for name in ("inputs", "targets", "labels")] == [few, few, 48]
    monkeypatch.setattr("trainer.components.dataset.MAX_SAMPLES", 23)
    assert "a sample has 0 MiB; allowed" in refused(kind.samples)


def test_a_dataset_is_loaded_with_its_parameters_and_directories(tmp_path: Path) -> None:
    """Mistakes of parameters are found before it is loaded; data of a subclass are downloaded before."""
    found: list[Any] = []

    def called(directory: Path, data_dir: Path, train: bool, samples: int = 9) -> Any:
        return found.append((directory, data_dir, train)) or good(samples)

    for wrong in ("test_share", "data_dir"):
        with pytest.raises(ParameterFailure, match=wrong):
            DatasetKind.adapt(called, {wrong: 0.5}, PLACE)
    own = DatasetKind.adapt(called, {"samples": 8}, PLACE)
    assert len(own.load(tmp_path).train.labels) == own.train_samples == 8
    assert found == [(Path(), tmp_path, True), (Path(), tmp_path, False)]

    base = type(changed(lambda data: found.append("loaded")).own)
    downloaded = declaring(base, prepare=lambda self, data_dir: found.append(data_dir))()
    DatasetKind(downloaded, On(data_dir=tmp_path, loading=True)).load()
    assert found[2:4] == [tmp_path, "loaded"]


def test_files_are_below_the_directory_of_the_sweep_file_or_the_data_directory(tmp_path: Path) -> None:
    sweep, data = tmp_path / "sweep", tmp_path / "data"
    for number, place in enumerate((sweep, data)):
        place.mkdir()
        np.savez(place / "both.npz", x=np.full((2, 1), number), y=np.zeros(2, int))
    np.savez(data / "other.npz", x=np.full((2, 1), 2), label=np.zeros(2, int))
    np.savez(data / "objects.npz", x=np.array([None] * 2), y=np.zeros(2, int))
    np.save(data / "one.npy", np.zeros(2))
    (data / "no_array.npz").write_text("no array")
    for name in ("empty/notes.txt", "filled/one.png", ".git/config"):
        (data / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (data / "images" / name).touch()

    def read(path: str, **names: str) -> Any:
        return user_files.npz(path, sweep, data, **names)[0][0, 0]

    assert (read("both.npz"), read("other.npz", targets="label")) == (0, 2)  # the sweep's come first
    np.save(sweep / "two.npy", np.ones(2))
    np.testing.assert_array_equal(user_files.npy("one.npy", "two.npy", sweep, data), [[0, 0], [1, 1]])
    cases = {
        "gone.npz | data directory": "gone.npz",
        "../a.npz | --data-dir": "../a.npz",
        f"{data}/both.npz | --data-dir": f"{data}/both.npz",
        "'y' | x, label": "other.npz",
        "'x' | objects.npz | numbers": "objects.npz",
        "no_array.npz": "no_array.npz",
        "one.npy | npy": "one.npy",
        "images | is a directory": "images",
    }
    assert failing(cases, read) == {}
    for path, text in (("images", "no image in empty;"), ("both.npz", "must be a directory")):
        assert text in refused(lambda path=path: user_files.image_folder(path, sweep, data))
