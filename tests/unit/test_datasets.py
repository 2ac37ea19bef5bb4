"""Datasets: the right pixels beside the right labels, normalised, the same for everybody."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from trainer.data.base import Data, DataError, Dataset
from trainer.data.datasets import DATASETS, digits
from trainer.data.datasets.cifar10 import Cifar10
from trainer.data.datasets.digits import Digits
from trainer.data.datasets.files import Archive
from trainer.data.datasets.mnist import FashionMnist, Mnist
from trainer.data.datasets.normalise import normalised
from trainer.data.datasets.synthetic import Synthetic

Bytes = npt.NDArray[np.uint8]
NOWHERE = Path("/nonexistent")  # for datasets that read no data_dir


def publish(path: str, content: bytes, folder: Path) -> Archive:
    """An archive whose mirror is a file in `folder`."""
    source = folder / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    return Archive(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), (source.as_uri(),))


def expected(pixels: Bytes, train: Bytes) -> npt.NDArray[np.float64]:
    """The textbook normalisation, with the statistics of `train`."""
    axes = (0, 2, 3)
    mean, deviation = train.mean(axes, keepdims=True), train.std(axes, keepdims=True)
    scaled: npt.NDArray[np.float64] = (pixels - mean) / deviation
    return scaled


def assert_ready_for_training(data: Data) -> None:
    for split in (data.train, data.test):
        assert split.images.dtype == np.float32
        assert split.images.ndim == 4
        assert split.labels.dtype == np.int64
        assert split.labels.shape == (len(split.images),)
        assert set(np.unique(split.labels)) <= set(range(data.classes))
        for array in (split.images, split.labels):  # torch.from_numpy warns of a read-only array
            assert array.flags.c_contiguous
            assert array.flags.writeable
    train = data.train.images.astype(np.float64)
    np.testing.assert_allclose(train.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(train.std((0, 2, 3)), 1, atol=1e-5)


# Normalisation


def test_each_channel_is_scaled_by_the_training_split() -> None:
    rng = np.random.default_rng(1)
    scale = np.array([10, 100, 255]).reshape(3, 1, 1)
    train = (rng.random((700, 3, 20, 20)) * scale).astype(np.uint8)  # more than one block
    test = (rng.random((50, 3, 20, 20)) * scale / 2).astype(np.uint8)
    train_before, test_before = train.copy(), test.copy()
    data = normalised((train, np.zeros(700, int)), (test, np.zeros(50, int)), classes=2)
    assert_ready_for_training(data)
    np.testing.assert_allclose(data.train.images, expected(train, train), atol=1e-5)
    np.testing.assert_allclose(data.test.images, expected(test, train), atol=1e-5)
    np.testing.assert_array_equal(train, train_before)
    np.testing.assert_array_equal(test, test_before)


def test_constant_channel_becomes_zero() -> None:
    pixels = np.full((4, 1, 2, 2), 7, np.uint8)
    data = normalised((pixels, np.zeros(4, int)), (pixels, np.zeros(4, int)), classes=2)
    np.testing.assert_array_equal(data.train.images, 0)


# Digits


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data = Digits().load(NOWHERE)
    assert_ready_for_training(data)
    assert data.train.images.shape == (Digits().train_samples, 1, 28, 28) == (1437, 1, 28, 28)
    assert data.test.images.shape == (360, 1, 28, 28)

    images = np.concatenate([data.train.images, data.test.images])[:, 0]
    labels = np.concatenate([data.train.labels, data.test.labels])
    low, high = images.min(), images.max()  # 0 and 16 before the normalisation
    images = np.rint((images - low) / (high - low) * 16)
    small = images[:, 3:26:3, 3:26:3]
    np.testing.assert_array_equal(
        images, np.pad(np.kron(small, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    )

    # Every sample of the original is in exactly one of the splits, beside its label.
    original = load_digits()
    ours = np.column_stack([small.reshape(-1, 64), labels])
    theirs = np.column_stack([original.data, original.target])
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert not np.array_equal(ours, theirs)  # shuffled


def test_digits_split_is_always_the_same() -> None:
    np.random.seed(1)
    first = Digits().load(NOWHERE)
    np.random.seed(2)
    second = Digits().load(NOWHERE)
    np.testing.assert_array_equal(first.train.images, second.train.images)
    np.testing.assert_array_equal(first.test.labels, second.test.labels)
    # Written down: another split would make results incomparable with earlier ones.
    assert first.test.labels[:16].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6, 6, 3, 1, 3, 8, 7]


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
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
        "import sys; from pathlib import Path; from trainer.data.datasets import DATASETS\n"
        "for name in DATASETS.entries: DATASETS.load(name)\n"
        "for name in ('digits', 'synthetic'): DATASETS.parse(name).load(Path())\n"
        "print(*{'torch', 'torchvision', 'sklearn', 'scipy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Synthetic


def nearest_mean_accuracy(data: Data) -> float:
    means = np.stack([data.train.images[data.train.labels == k].mean(0) for k in range(data.classes)])
    images = data.test.images.reshape(len(data.test.images), 1, -1)
    nearest = ((images - means.reshape(1, data.classes, -1)) ** 2).sum(2).argmin(1)
    return float((nearest == data.test.labels).mean())


def test_synthetic_is_learnable_and_harder_with_noise() -> None:
    assert nearest_mean_accuracy(Synthetic().load(NOWHERE)) > 0.95
    hard = nearest_mean_accuracy(Synthetic(noise=12.0).load(NOWHERE))
    assert 0.2 < hard < 0.8  # chance is 0.1


def test_synthetic_depends_on_its_parameters_alone() -> None:
    first, again = Synthetic().load(NOWHERE), Synthetic().load(NOWHERE)
    other = Synthetic(data_seed=1).load(NOWHERE)
    np.testing.assert_array_equal(first.train.images, again.train.images)
    np.testing.assert_array_equal(first.test.images, again.test.images)
    np.testing.assert_array_equal(first.train.labels, again.train.labels)
    assert not np.array_equal(first.train.labels, other.train.labels)
    assert not np.allclose(first.train.images, other.train.images)
    assert not np.allclose(first.train.images[:512], first.test.images)
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
    assert data.train.images.shape == (dataset.train_samples, *shape) == (dataset.samples, *shape)
    assert data.test.images.shape == (dataset.test_samples, *shape)
    assert data.classes == dataset.classes
    counts = np.bincount(data.train.labels, minlength=dataset.classes)
    assert counts.max() - counts.min() <= 1


def test_synthetic_without_noise_has_one_smooth_picture_per_class() -> None:
    data = Synthetic(samples=60, classes=3, noise=0.0).load(NOWHERE)
    assert len(np.unique(data.train.images.reshape(60, -1), axis=0)) == 3
    assert abs(np.diff(data.train.images, axis=3)).max() < 1  # neighbours; the deviation is 1


def test_synthetic_single_sample() -> None:
    data = Synthetic(samples=1, test_samples=1, height=1, width=1).load(NOWHERE)
    np.testing.assert_array_equal(data.train.images, 0)
    assert np.isfinite(data.test.images).all()


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


# MNIST and Fashion-MNIST


def idx(array: Bytes) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def fake_idx_archives(arrays: list[Bytes], folder: Path, mnist: type[Dataset]) -> tuple[Archive, ...]:
    """The arrays under the published names, each at a mirror in `folder`."""
    return tuple(
        publish(real.path, gzip.compress(idx(array)), folder)
        for real, array in zip(mnist.archives, arrays, strict=True)  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("mnist", [Mnist, FashionMnist])
def test_mnist_is_prepared_and_read(
    mnist: type[Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images, test_images = (rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (40, 10))
    labels, test_labels = (rng.integers(0, 10, n, np.uint8) for n in (40, 10))
    arrays = [images, labels, test_images, test_labels]
    monkeypatch.setattr(mnist, "archives", fake_idx_archives(arrays, tmp_path / "mirror", mnist))

    data_dir = tmp_path / "data"
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not in"):
        mnist().load(data_dir)
    assert not data_dir.exists()  # loading writes nothing

    mnist().prepare(data_dir)
    data = mnist().load(data_dir)
    assert_ready_for_training(data)
    assert data.classes == 10
    np.testing.assert_array_equal(data.train.labels, labels)
    np.testing.assert_array_equal(data.test.labels, test_labels)
    np.testing.assert_allclose(data.train.images, expected(images[:, None], images[:, None]), atol=1e-5)
    np.testing.assert_allclose(data.test.images, expected(test_images[:, None], images[:, None]), atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "is not an IDX file of bytes"),  # of float32
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], "does not hold 2×28×28 values"),
        (idx(np.zeros(3, np.uint8)) + b"\0", "does not hold 3 values"),
        (b"\0\0\x08\x03\0\0\0\x02", "does not hold"),
    ],
)
def test_mnist_rejects_other_content(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = publish("MNIST/raw/file.gz", gzip.compress(content), tmp_path)
    monkeypatch.setattr(Mnist, "archives", (archive,) * 4)
    with pytest.raises(DataError, match=message):
        Mnist().load(tmp_path)


@pytest.fixture(scope="module")
def torchvision_datasets() -> Iterator[ModuleType]:
    torch = pytest.importorskip("torch")
    declared = None
    try:
        import torchvision.datasets
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        # torchvision's CUDA build beside a torch without CUDA: its operators did not load. No dataset
        # uses them, so it is enough to declare those that the import looks up.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.datasets
    yield torchvision.datasets
    del declared  # the declarations hold as long as this object lives


def real_mnist_dir() -> Path:
    beside_repository = Path(__file__).parents[3] / "shared" / "datasets"
    data_dir = Path(os.environ.get("SHARDYARD_DATA", beside_repository))
    absent = [archive.path for archive in Mnist.archives if not (data_dir / archive.path).exists()]
    if absent:
        pytest.skip(f"{data_dir} lacks {absent[0]}; name a directory that has it with SHARDYARD_DATA")
    return data_dir


def test_real_mnist_is_what_torchvision_reads(torchvision_datasets: ModuleType, tmp_path: Path) -> None:
    data_dir = real_mnist_dir()
    raw = {}
    for archive in Mnist.archives:
        path = tmp_path / Path(archive.path).stem
        path.write_bytes(gzip.decompress((data_dir / archive.path).read_bytes()))
        read = (
            torchvision_datasets.mnist.read_image_file
            if "images" in path.name
            else torchvision_datasets.mnist.read_label_file
        )
        raw[path.name] = read(path).numpy()
    pixels = raw["train-images-idx3-ubyte"]
    mean, deviation = pixels.mean(), pixels.std()
    assert (mean / 255, deviation / 255) == pytest.approx((0.1307, 0.3081), abs=5e-5)  # well known

    Mnist().prepare(data_dir)
    data = Mnist().load(data_dir)
    assert data.train.images.shape == (Mnist().train_samples, 1, 28, 28) == (60_000, 1, 28, 28)
    assert data.test.images.shape == (10_000, 1, 28, 28)
    np.testing.assert_array_equal(data.train.labels, raw["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(data.test.labels, raw["t10k-labels-idx1-ubyte"])
    for images, original in (
        (data.train.images, pixels),
        (data.test.images, raw["t10k-images-idx3-ubyte"]),
    ):
        images *= deviation  # in place: a copy would take as much memory again
        images += mean
        assert abs(images[:, 0] - original).max() < 1e-3


# CIFAR-10


def python2_pickle(entries: Mapping[str, Bytes | list[int]]) -> bytes:
    """What Python 2 and numpy 1 wrote for {string: array or list of small numbers}, protocol 2."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # bytes, where Python 3 would write text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(value: Bytes) -> bytes:
        shape = number(value.shape[0]) + number(value.shape[1]) + b"\x86"
        dtype = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
        dtype += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85"
        state = b"(" + number(1) + shape + dtype + b"\x89" + string(value.tobytes()) + b"tb"
        return new + string(b"b") + b"\x87R" + state

    body = b""
    for key, value in entries.items():
        listed = isinstance(value, list)
        body += string(key.encode())
        body += b"](" + b"".join(map(number, value)) + b"e" if listed else array(np.asarray(value))
    return b"\x80\x02}(" + body + b"u."


Publish = Callable[[dict[str, bytes]], Path]


@pytest.fixture
def publish_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Packs members (name in the folder: content) as the archive; returns a data_dir that has it."""

    def pack(members: dict[str, bytes]) -> Path:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        archive = publish(Cifar10.archive.path, packed.getvalue(), tmp_path / "mirror")
        monkeypatch.setattr(Cifar10, "archive", archive)
        Cifar10().prepare(tmp_path / "data")
        return tmp_path / "data"

    return pack


def fake_batches(samples: int = 6) -> dict[str, tuple[Bytes, list[int]]]:
    rng = np.random.default_rng(0)
    # The published archive is not in the order of the numbers either.
    order = ["data_batch_4", "test_batch", *(f"data_batch_{number}" for number in (3, 2, 5, 1))]
    return {
        name: (rng.integers(0, 256, (samples, 3072), np.uint8), rng.integers(0, 10, samples).tolist())
        for name in order
    }


def test_cifar10_is_prepared_and_read(publish_cifar10: Publish) -> None:
    batches = fake_batches()
    members = {
        name: python2_pickle({"data": pixels, "labels": labels})
        for name, (pixels, labels) in batches.items()
    }
    data = Cifar10().load(publish_cifar10({"readme.html": b"<html>", **members}))
    assert_ready_for_training(data)
    assert data.classes == 10
    train = [batches[f"data_batch_{number}"] for number in range(1, 6)]
    test_pixels, test_labels = batches["test_batch"]
    assert data.train.labels.tolist() == [label for _, labels in train for label in labels]
    assert data.test.labels.tolist() == test_labels
    planes = np.concatenate([pixels for pixels, _ in train]).reshape(30, 3, 32, 32)
    np.testing.assert_allclose(data.train.images, expected(planes, planes), atol=1e-5)
    np.testing.assert_allclose(
        data.test.images, expected(test_pixels.reshape(6, 3, 32, 32), planes), atol=1e-5
    )


def test_cifar10_lacking_a_batch(publish_cifar10: Publish) -> None:
    batches = fake_batches()
    members = {name: python2_pickle({"data": p, "labels": n}) for name, (p, n) in batches.items()}
    del members["data_batch_5"]
    with pytest.raises(DataError, match="lacks cifar-10-batches-py/data_batch_5"):
        Cifar10().load(publish_cifar10(members))


class Hostile:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval])
def test_cifar10_calls_nothing_that_a_pickle_names(
    publish_cifar10: Publish, tmp_path: Path, function: Callable[..., object], protocol: int
) -> None:
    trace = tmp_path / "called"
    command = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    hostile = pickle.dumps({"data": Hostile(function, command)}, protocol)
    data_dir = publish_cifar10({"data_batch_1": hostile})
    with pytest.raises(DataError, match=rf"asks for \w+\.{function.__name__},"):
        Cifar10().load(data_dir)
    assert not trace.exists()


# All of them


def test_published_facts_are_those_of_torchvision(torchvision_datasets: ModuleType) -> None:
    for ours, theirs in (
        (Mnist, torchvision_datasets.MNIST),
        (FashionMnist, torchvision_datasets.FashionMNIST),
    ):
        assert [(archive.path, archive.md5) for archive in ours.archives] == [
            (f"{theirs.__name__}/raw/{name}", md5) for name, md5 in theirs.resources
        ]
        for archive in ours.archives:
            name = Path(archive.path).name
            assert archive.urls == tuple(mirror + name for mirror in theirs.mirrors)
    cifar10 = torchvision_datasets.CIFAR10
    assert Cifar10.archive == Archive(cifar10.filename, cifar10.tgz_md5, (cifar10.url,))


def test_sizes_are_known_before_a_file_is_read() -> None:
    sizes = {name: DATASETS.parse(name).train_samples for name in DATASETS.entries}
    assert sizes == {
        "digits": 1437,
        "mnist": 60_000,
        "fashion_mnist": 60_000,
        "cifar10": 50_000,
        "synthetic": 2048,
    }
