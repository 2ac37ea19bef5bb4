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

from tests.support.laws import assert_faults, findings
from trainer.components.dataset import DatasetKind, ImportedDataset, digest
from trainer.components.facts import Source
from trainer.components.kind import Elsewhere, On
from trainer.components.parameters import ParameterFailure
from trainer.core.user_code import CODE, ImportFailure
from trainer.data.base import Data, DataError, Dataset, Split
from trainer.data.datasets import user_files
from trainer.spec.registries import DATASETS

Make = Callable[..., Any]
PLACE = Source(module="mine.py", attribute="it")


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE, "")


# Laws


class Stated(Dataset):
    train_samples = property(lambda self: 20)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 2)
    change: Any = lambda data: None

    def load(self, data_dir: Path) -> Data:
        rng = np.random.default_rng(0)
        splits = [Split(rng.random((count, 4), np.float32), np.arange(count) % 2) for count in (20, 10)]
        data = Data(*splits, classes=2, scale=None)
        return self.change(data) or data


def changed(change: Callable[[Data], Any]) -> DatasetKind:
    """A dataset whose samples are changed."""
    return DatasetKind(Stated(change=change))


def putting(split: str, what: str, at: Any, value: Make) -> DatasetKind:
    return changed(lambda data: getattr(getattr(data, split), what).__setitem__(at, value()))


def first(split: Split, inputs: int, labels: int) -> Split:
    return Split(split.inputs[:inputs], split.labels[:labels])


def common(same: int) -> DatasetKind:
    """Of 100 samples for tests, so many are in both splits."""
    inputs = np.arange(1000, dtype=np.float32)[:, None]
    of = (inputs[:900], inputs[900 - same : 1000 - same])
    return changed(lambda _: Data(*(Split(each, np.zeros(len(each), np.int64)) for each in of), 1, None))


COUNT = count()
# What is tried, by the law that it breaks and a pattern of the input and of what is found for it.
FAULTS = {
    "runs: both splits.*ZeroDivisionError": changed(lambda data: 1 / 0),
    "sizes: 9 training.*20 inputs, 9 labels": changed(
        lambda data: Data(first(data.train, 20, 9), data.test, 2, None)
    ),
    "sizes: 20 training and 0 test.*: samples in the test split: none": changed(
        lambda data: Data(data.train, first(data.test, 0, 0), 2, None)
    ),
    "stated: 10 training.*samples 10": changed(lambda data: Data(data.test, data.test, 2, None)),
    "stated: 20 training.*classes 3": changed(lambda data: Data(data.train, data.test, 3, None)),
    "labels: 2 of training sample 7": putting("train", "labels", 7, lambda: 2),
    "numbers: nan in sample 3, column 1": putting("test", "inputs", (3, 1), lambda: np.nan),
    "again: inputs of training sample 3 when global random .*: use a generator": putting(
        "train", "inputs", 3, np.random.rand
    ),
    "again: inputs of training sample 3 in a second call": putting("train", "inputs", 3, COUNT.__next__),
    r"apart: 10 of 10 \(100 %\), such as test sample 0, which is training sample 0": changed(
        lambda data: Data(data.train, first(data.train, 10, 10), 2, None)
    ),
    r"apart: 6 of 100 \(6 %\)": common(6),
}


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"process"})
    other = DatasetKind(Stated()).process(Elsewhere(digest="other"))
    assert "other samples" in str(other)
    (apart,) = findings(common(5), "apart").values()
    assert (apart.status, "5 of 100 (5 %)" in apart.reason) == ("note", True)


@pytest.mark.parametrize("name", [name for name in DATASETS.entries if not DATASETS.parse(name).files])
def test_a_registered_dataset_keeps_all_laws(name: str) -> None:
    found = findings(DatasetKind(DATASETS.parse(name))).values()
    assert [each for each in found if each.status in ("failed", "skipped")] == []


# Users' datasets


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(ImportFailure) as raised:
        work()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def failing(cases: dict[str, Any], tried: Callable[[Any], Any]) -> dict[str, str]:
    """Messages in which a part is missing. cases: the component by the parts of its message."""
    found = {parts: refused(lambda called=called: tried(called)) for parts, called in cases.items()}
    return {
        parts: message
        for parts, message in found.items()
        if not all(part in message for part in parts.split(" | "))
    }


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


def damaged(value: float, samples: int = 2, targets: bool = False, images: bool = False) -> Make:
    """Samples from 5 on have another value in one place."""
    found = np.ones((9, 2, 3, 3) if images else (9, 3)), np.ones((9, 1))
    found[targets][5 : 5 + samples, ..., -1] = value
    return lambda: found


def mixed(value: Any, kind: Any) -> Make:
    inputs = np.ones((9, 3), kind)
    inputs[4, 1] = value
    return lambda: (inputs, np.zeros(9, int))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield np.zeros(3), 0


class Named(list[Any]):
    classes = ("a", "b")


def test_data_that_is_no_dataset_is_described() -> None:
    bunch = type("Bunch", (dict,), {})(data=1, target=2)
    forms = {
        "item 0 | (3,) | item 5 | (4,)": lambda: [(np.zeros(3 + (at > 4)), 0) for at in range(9)],
        "item 0 | tuple and length 3 | pair": lambda: [(np.zeros(3), 0, 1)] * 9,
        "Stream | map-style": Stream,
        "NoneType": lambda: None,
        "dict | x, y | pair of arrays (inputs, targets)": lambda: {"x": 1, "y": 2},
        "Bunch | target | return_X_y: true": lambda: bunch,
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
        "inputs | nan in sample 5, column 2, the first of 2 in 2 samples": damaged(np.nan),
        "nan in sample 5, column 2; expected": damaged(np.nan, samples=1),
        "infinite | sample 5, index [0, 0, 2] | of 12 in 2 samples": damaged(np.inf, images=True),
        "targets | nan in sample 5, column 0": damaged(np.nan, targets=True),
        "inputs in float32 | inf in sample 5, column 2": damaged(1e300),
        "<U4 | 'word' in sample 0, column 0 | numbers": lambda: (np.full((9, 3), "word"), np.zeros(9, int)),
        "object | 'missing' in sample 4, column 1": mixed("missing", object),
        "inputs hold 9223372036854775808 in sample 4, column 1 | int64": mixed(2**63, np.uint64),
    }
    classes = {
        "sample 0 has the label -1; allowed: 0 to 999, or floating-point": labelled(-1, 0, 1),
        "sample 1 has the label -3, the first of 2;": labelled(0, -3, -2),
        "sample 2 has the label 1000;": labelled(0, 999, 1000),
        "sample 1 has the label 2; allowed: 0 to 1": lambda: Named([(np.zeros(3), 0), (np.zeros(3), 2)]),
    }
    assert failing(forms | numbers | classes, load) == {}
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
    for name, values in (("test_share", (0, 1, 1.5, "half", True)), ("split_seed", (-1, 0.5))):
        for value in values:
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
    def of(**test: Any) -> Any:
        inputs, labels = np.ones((9, 3), test.pop("kind", np.float32)), np.arange(9) % 2
        data = Data(Split(inputs, labels), Split(**{"inputs": inputs, "labels": labels, **test}), 2, None)
        stated = {"train_samples": 9, "shape": (3,), "class_count": 2}
        members = {name: property(lambda self, value=value: value) for name, value in stated.items()}
        members |= {"__module__": __name__, "load": lambda self, data_dir: data}
        return type("Own", (Dataset,), members)

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

    def own() -> ImportedDataset:
        return ImportedDataset(name="it", imported=known)

    stated = own()
    assert (stated.train_samples, stated.shape, stated.input_type) == (48, (4,), "float32")
    assert (stated.class_count, stated.outputs, stated.target_shape, stated.files) == (3, 3, (), ())
    assert stated.imported.key_fields == {"code": "", "data": kind.digest()}
    np.testing.assert_array_equal(stated.load(Path()).train.inputs, kind.data.train.inputs)
    for called, error in (
        (lambda: good(59), "gives other samples"),
        (lambda: 1 / 0, ".*ZeroDivisionError"),
    ):
        monkeypatch.setattr(Source, "load", lambda self, called=called: called)
        with pytest.raises(DataError, match=f"it: {error}"):
            own().load(Path())
    for wrong in ({"files": ["../one"]}, {"files": ["/one"]}, {"class_count": 1001}, {"train_samples": 0}):
        with pytest.raises(ValidationError, match=f"imported.{next(iter(wrong))}"):
            ImportedDataset(name="it", imported={**known, **wrong})

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
        found.append((directory, data_dir, train))
        return good(samples)

    for parameters in ({"samples": "9"}, {"sample": 9}, {"test_share": 0.5}, {"data_dir": "a"}):
        with pytest.raises(ParameterFailure, match=next(iter(parameters))):
            DatasetKind.adapt(called, parameters, PLACE)
    own = DatasetKind.adapt(called, {"samples": 8}, PLACE)
    assert len(own.load(tmp_path).train.labels) == own.train_samples == 8
    assert found == [(Path(), tmp_path, True), (Path(), tmp_path, False)]

    class Downloaded(Stated):
        def prepare(self, data_dir: Path) -> None:
            found.append(data_dir)

        def load(self, data_dir: Path) -> Data:
            assert found[-1] == data_dir
            return super().load(data_dir)

    DatasetKind(Downloaded(), On(data_dir=tmp_path / "other", loading=True)).load()


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
