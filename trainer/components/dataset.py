"""Datasets: a subclass of Dataset, a pair of arrays, or any map-style dataset of torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from pydantic import Field, PrivateAttr

from trainer.components.facts import Facts, Imported, Source
from trainer.components.kind import (
    Elsewhere,
    Input,
    Kind,
    NotApplicable,
    Note,
    Verdict,
    counted,
    law,
    refuse,
)
from trainer.components.parameters import bound, checked, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.components.samples import MAX_LABELS, MAX_SAMPLES, TRIED_SAMPLES, spread
from trainer.core.failure import Failure
from trainer.core.registry import shortened
from trainer.core.user_code import MAX_NAME, ImportFailure, located
from trainer.data.base import MOST_CLASSES, Array, Data, DataError, Dataset, Indices, PixelScale, Split
from trainer.data.datasets.normalise import pixel_range

MAX_SHOWN = 40  # characters of a value in a message
MOST_SHARED = 0.05  # of the test split; real datasets have a few samples twice
TYPES = ("float32", "int64", "uint8", "int32", "bool")
SPLIT = ("test_share", "split_seed")
WHAT = ("input", "target")
ALLOWED = "allowed: a pair of arrays (inputs, targets), or a map-style dataset of pairs (input, target)"
# What a dataset states about its samples, by their names in messages.
STATED = {"samples": "train_samples", "shape": "shape", "type": "input_type", "classes": "class_count"}


def divided(
    whole: Split,
    test_share: Annotated[float, Interval(gt=0, lt=1)] = 0.2,
    split_seed: Annotated[int, Interval(ge=0)] = 0,
) -> tuple[Split, Split]:
    """Draw a training and a test split from samples without one; at least one sample is in each."""
    count = len(whole.inputs)
    if count < 2:
        raise ImportFailure(f"it has {count} samples, and needs at least 2 to be split")
    order = np.random.default_rng(split_seed).permutation(count)
    tests = min(max(1, round(count * test_share)), count - 1)
    return _taken(whole, np.sort(order[tests:])), _taken(whole, np.sort(order[:tests]))


def _taken(of: Split, at: Indices) -> Split:
    return Split(of.inputs[at], of.labels[at], None if of.other_targets is None else of.other_targets[at])


class ArrayDataset(Dataset):
    """What a user's callable returns, as a dataset. It states what it has loaded, so load it first.

    called: returns a map-style dataset or a pair of arrays. With a parameter `train` it is called once for
    each split. parameters: those of the sweep file. directory: what it may take as `directory`. divide:
    draws the test split of what has no parameter `train`.
    """

    called: Any
    parameters: dict[str, Any]
    directory: Path
    divide: Any = None

    _stated: dict[str, Any] = PrivateAttr(default_factory=dict)

    train_samples = property(lambda self: self._stated["train_samples"])
    shape = property(lambda self: self._stated["shape"])
    input_type = property(lambda self: self._stated["input_type"])
    class_count = property(lambda self: self._stated["class_count"])

    def load(self, data_dir: Path) -> Data:
        """Both splits. Raises ImportFailure, or what users' code raises."""
        given = {"data_dir": data_dir, "directory": self.directory}
        if self.divide is None:
            both = (self._samples({**given, "train": train}) for train in (True, False))
            (train, classes), (test, _) = both
        else:
            whole, classes = self._samples(given)
            train, test = self.divide(whole)
        highest = max(int(each.labels.max()) for each in (train, test))
        data = Data(train, test, classes or highest + 1, _pixel_scale(train.inputs))
        self._stated.update(stated_of(data))
        return data

    def _samples(self, given: Mapping[str, Any]) -> tuple[Split, int]:
        return samples_of(self.called(**checked(self.called, self.parameters, given)))


def stated_of(data: Data) -> dict[str, Any]:
    """What a dataset of these samples states."""
    inputs = data.train.inputs
    known = len(data.train.labels), inputs.shape[1:], inputs.dtype.name, data.classes
    return dict(zip(STATED.values(), known, strict=True))


def samples_of(found: Any) -> tuple[Split, int]:
    """The samples of what a user's callable returned, and how many classes it states, or 0.

    Targets are classes if they are whole numbers, one for each sample. There is at least one sample.
    """
    arrays = [hasattr(each, "shape") for each in found] if isinstance(found, tuple | list) else []
    if reason := _other_form(found, arrays):
        raise ImportFailure(f"it gives {reason}; {ALLOWED}")
    if len(arrays) == 2 and all(arrays):
        inputs, targets = (np.asarray(each) for each in found)
        if not inputs.ndim or not targets.ndim:
            raise ImportFailure("it gives two numbers; the first dimension of arrays must count samples")
        if len(inputs) != len(targets):
            raise ImportFailure(f"it has {len(inputs)} inputs and {len(targets)} targets")
    else:
        items = [_item(found, number) for number in range(len(found))]
        inputs, targets = (_stacked([item[at] for item in items], what) for at, what in enumerate(WHAT))
    if not len(inputs):
        raise ImportFailure("it has no samples")
    inputs, targets = _array(inputs, WHAT[0]), _array(targets, WHAT[1])
    if targets.ndim != 1 or targets.dtype.kind != "i":
        return Split(inputs, np.zeros(len(inputs), np.int64), targets), 0
    names = getattr(found, "classes", None)  # as torchvision's have them
    classes = len(names) if isinstance(names, Sequence) and not isinstance(names, str) else 0
    if classes > MOST_CLASSES:
        raise ImportFailure(f"it states {classes} classes; allowed: at most {MOST_CLASSES}")
    most = classes or MOST_CLASSES
    if (wrong := (targets < 0) | (targets >= most)).any():
        (at,), others = _first(wrong)
        raise ImportFailure(
            f"sample {at} has the label {targets[at]}{others}; allowed: 0 to {most - 1}, or "
            "floating-point numbers, which are no classes"
        )
    return Split(inputs, targets), classes


def _other_form(found: Any, arrays: Sequence[bool]) -> str | None:
    """Names data in a common form that is not a dataset, and says what to change; None for other data.

    arrays: whether each item of a tuple or list is an array.
    """
    if isinstance(found, Mapping):
        what = f"an object of {_described(found)} with the keys {shortened([str(key) for key in found])}"
        bunch = ", or set return_X_y: true" if type(found).__name__ == "Bunch" else ""
        return f"{what}; return two of its values as a pair{bunch}"
    if hasattr(found, "shape") and hasattr(found, "ndim"):  # a dataset may state a shape, too
        return f"one array of {_described(found)}"
    if len(arrays) > 2 and all(arrays):
        return f"{len(arrays)} arrays; for a test split of its own, give it the parameter `train`"
    lists = len(arrays) == 2 and not all(arrays) and (any(arrays) or isinstance(found, tuple))
    if lists and all(hasattr(each, "shape") or isinstance(each, list) for each in found):
        types = ", ".join(type(each).__name__ for each in found)
        return f"a pair ({types}); convert both to arrays, as np.array does"
    indexed = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    return None if indexed else f"an object of {_described(found)}"


def _described(value: Any) -> str:
    """The type of a value, with its shape or its length."""
    name = f"type {type(value).__name__}"
    if hasattr(value, "shape"):
        return f"{name} and shape {tuple(value.shape)}"
    return f"{name} and length {len(value)}" if isinstance(value, tuple | list) else name


def _item(found: Any, number: int) -> tuple[Any, Any]:
    item = found[number]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ImportFailure(f"item {number} is of {_described(item)}; it must be a pair (input, target)")
    return np.asarray(item[0]), np.asarray(item[1])


def _stacked(items: Sequence[Any], what: str) -> Array:
    for number, item in enumerate(items):
        if item.shape != items[0].shape:
            differ = f"item 0 has {items[0].shape}, of item {number} {item.shape}"
            raise ImportFailure(f"items differ in shape: the {what} of {differ}")
    return np.stack(items) if items else np.zeros(0)


def _array(values: Array, what: str) -> Array:
    """The values in a type that torch and the run support, in memory of their own."""
    if values.dtype.kind not in "fiub":
        raise ImportFailure(f"the {what}s are of type {values.dtype}{_no_number(values)}; allowed: numbers")
    if values.dtype.kind == "f":
        refuse(not_finite(values, f"{what}s"))
        with np.errstate(over="ignore"):
            found = np.array(values, np.float32, order="C")
        refuse(not_finite(found, f"{what}s in float32"))
        return found
    if values.dtype == np.uint64 and (large := values > np.iinfo(np.int64).max).any():
        at, others = _first(large)
        raise ImportFailure(f"the {what}s hold {values[at]} in {_place(at)}{others}; allowed: int64")
    keeps = what == "input" and values.dtype.name in TYPES
    return np.array(values, values.dtype if keeps else np.int64, order="C")


def _no_number(values: Array) -> str:
    """Names the first value that is no number, for a message; empty if all are: objects may be."""
    for at, value in np.ndenumerate(values):
        if not isinstance(value, int | float | np.number):
            shown = repr(value[:MAX_SHOWN]) if isinstance(value, str) else type(value).__name__
            return f", such as {shown} in {_place(at)}"
    return ""


def not_finite(values: Array, of: str) -> Failure | None:
    """Which floating-point numbers are nan or infinite; or None. of: what they are, in the plural."""
    if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
        return None
    at, others = _first(~finite)
    found = f"the {of} hold nan or infinite numbers: {values[at]} in {_place(at)}{others}"
    return Failure("finite numbers", found)


def _first(wrong: Array) -> tuple[tuple[int, ...], str]:
    """The first place where an array is true, and of how many it is the first, for a message."""
    at = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
    if (count := int(wrong.sum())) == 1:
        return at, ""
    samples = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
    return at, f", the first of {count:,}" + (f" in {counted(samples, 'sample')}" if wrong.ndim > 1 else "")


def _place(at: tuple[int, ...]) -> str:
    """A place in inputs or targets, counted from 0."""
    sample, *inside = at
    where = f", column {inside[0]}" if len(inside) == 1 else f", index {inside}"
    return f"sample {sample}{where if inside else ''}"


def _pixel_scale(inputs: Array) -> PixelScale | None:
    """The scale of images; None for other inputs."""
    if inputs.ndim != 4 or inputs.dtype != np.float32:
        return None
    darkest, span = pixel_range(inputs)
    ones = np.ones((inputs.shape[1], 1, 1), np.float32)
    return PixelScale(-darkest / span * ones, ones / span)


def digest(data: Data) -> str:
    """16 hex digits that identify all samples of both splits, in their order."""
    found = sha256()
    for _, _, array in _arrays(data):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]


def _splits(data: Data) -> tuple[tuple[str, Split], ...]:
    """Both splits and their names."""
    return ("training", data.train), ("test", data.test)


def _arrays(data: Data) -> Iterator[tuple[str, str, Array]]:
    """Inputs and targets of both splits, after the name of the split and their own."""
    for name, each in _splits(data):
        yield from ((name, "inputs", each.inputs), (name, "targets", each.targets))


def _differing(first: Data, second: Data) -> str:
    """Which samples differ, the first of them by its number; empty if none do."""
    for (name, what, one), (_, _, other) in zip(_arrays(first), _arrays(second), strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{name} {what}"
        equal = (one == other) | ((one != one) & (other != other))  # nan
        if not equal.all():
            return f"{what} of {name} sample {_first(~equal)[0][0]}"
    return ""


def _digests(of: Split) -> Iterator[bytes]:
    """A digest of each sample's input and target."""
    for image, target in zip(of.inputs, of.targets, strict=True):
        yield sha256(image.tobytes() + np.asarray(target).tobytes()).digest()


class Splits(Input):
    """Both splits. train, test: their samples; 0 before they are loaded."""

    train: Annotated[int, Interval(ge=0, le=2**40)] = 0
    test: Annotated[int, Interval(ge=0, le=2**40)] = 0

    def __str__(self) -> str:
        if self == Splits():
            return "both splits"
        return f"{self.train:,} training and {self.test:,} test samples"


class DatasetKind(Kind[Dataset]):
    """A dataset that is tried. It is loaded once, and again where a law asks for that."""

    name = "dataset"
    base = Dataset
    torch_base = "torch.utils.data:Dataset"
    needs = ()

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Dataset:
        divide, own = None, dict(parameters)
        if "train" not in signature_of(called):
            divide = bound(divided, {name: own.pop(name) for name in SPLIT if name in own}, ("whole",))
        checked(called, own, dict.fromkeys(("data_dir", "directory", "train")))  # before any law
        return ArrayDataset(called=called, parameters=own, directory=source.directory, divide=divide)

    @cached_property
    def data(self) -> Data:
        """The samples. Raises DataError, ImportFailure, or what users' code raises."""
        scatter_seeds(1)
        return self.own.load(self.on.data_dir)

    @property
    def inputs(self) -> Sequence[Splits]:
        return [Splits(train=len(self.data.train.labels), test=len(self.data.test.labels))]

    def load(self) -> None:
        self.own.prepare(self.on.data_dir)
        super().load()

    def facts(self) -> dict[str, Any]:
        known = stated_of(self.data)
        return {**super().facts(), **known, "data": self.digest()}

    def digest(self) -> str:
        return digest(self.data)

    def samples(self) -> bytes:
        """A file .npz of some inputs, targets and labels, for other trials. Raises ImportFailure."""
        train, file = self.data.train, io.BytesIO()
        sample = train.inputs[:1].nbytes + train.targets[:1].nbytes
        if sample > MAX_SAMPLES:
            size = f"a sample has {sample / 2**20:.0f} MiB"
            raise ImportFailure(f"{size}; allowed: at most {MAX_SAMPLES >> 20} MiB")
        few = spread(train.targets, min(TRIED_SAMPLES, MAX_SAMPLES // max(1, sample)))
        labels = train.labels[np.sort(spread(train.labels, MAX_LABELS))]
        np.savez(file, inputs=train.inputs[few], targets=train.targets[few], labels=labels)
        return file.getvalue()

    @law("both splits load", lambda self: [Splits()], essential=True, at_loading=True)
    def runs(self, _: Splits) -> Verdict:
        self.data  # noqa: B018
        return None

    @law("as many inputs as labels and targets", at_loading=True)
    def sizes(self, _: Splits) -> Verdict:
        for name, each in _splits(self.data):
            counts = {"inputs": len(each.inputs), "labels": len(each.labels), "targets": len(each.targets)}
            if len({*counts.values()}) > 1:
                listed = ", ".join(f"{number} {what}" for what, number in counts.items())
                return Failure(f"equal numbers in the {name} split", listed)
            if not len(each.labels):
                return Failure(f"samples in the {name} split", "none")
        return None

    @law("samples, shape and classes are as stated", at_loading=True)
    def stated(self, _: Splits) -> Verdict:
        form = "{} of shape {} and type {}".format
        all_four = [form(what, each.shape[1:], each.dtype) for _, what, each in _arrays(self.data)]
        for train, test in zip(all_four[:2], all_four[2:], strict=True):
            if train != test:
                return Failure(f"test {train}, as in training", f"test {test}")
        if isinstance(self.own, ArrayDataset):
            raise NotApplicable("it states nothing")
        known = stated_of(self.data)
        for what, name in STATED.items():
            said = getattr(self.own, name)
            if (tuple(said) if name == "shape" else said) != known[name]:
                return Failure(f"{what} {said}, as stated", f"{what} {known[name]}")
        return None

    @law("labels are int64, 0 to classes - 1", at_loading=True)
    def labels(self, _: Splits) -> Verdict:
        classes = self.data.classes
        for name, each in _splits(self.data):
            labels = each.labels
            if labels.dtype != np.int64 or labels.ndim != 1:
                expected = f"int64 of shape (samples,) in the {name} split"
                return Failure(expected, f"{labels.dtype} of {labels.shape}")
            if (outside := (labels < 0) | (labels >= classes)).any():
                (at,), others = _first(outside)
                got = f"{labels[at]} of {name} sample {at}{others}"
                return Failure(f"labels from 0 to {classes - 1}", got)
        labels = self.data.train.labels
        without = sorted({*range(classes)} - {*labels.tolist()})
        listed = ", ".join(map(str, without[:5])) + ", …" * (len(without) > 5)
        text = f"no training sample is of class {listed}: labels are {labels.min()} to {labels.max()}, and"
        return Note(f"{text} it has {classes} classes, 0 to {classes - 1}") if without else None

    @law("numbers are finite", at_loading=True)
    def numbers(self, _: Splits) -> Verdict:
        found = (not_finite(array, f"{name} {what}") for name, what, array in _arrays(self.data))
        return next((failure for failure in found if failure), None)

    @law("it gives the same samples again", at_loading=True)
    def again(self, _: Splits) -> Verdict:
        seeds = (2,) if self.on.loading else (1, 2)  # once when a sweep is loaded: it may take long
        remedy = "use a generator with a seed"
        first, load = self.data, partial(self.own.load, self.on.data_dir)
        return repetition_error(first, load, _differing, remedy, seeds)

    @law("another process loads the same samples", across=True)
    def process(self, elsewhere: Elsewhere) -> Verdict:
        return elsewhere.difference(self.digest(), "samples")

    @law("no test sample is in the training split")
    def apart(self, _: Splits) -> Verdict:
        """Samples with equal inputs and targets. A few are worth knowing, many are a mistake."""
        train, test = self.data.train, self.data.test
        known = {sample: at for at, sample in enumerate(_digests(train))}
        both = [(at, known[sample]) for at, sample in enumerate(_digests(test)) if sample in known]
        if not both:
            return None
        share = len(both) / len(test.labels)
        text = (
            f"{len(both)} of {len(test.labels):,} ({100 * share:.3g} %), such as test sample {both[0][0]}, "
            f"which is training sample {both[0][1]}"
        )
        if share > MOST_SHARED:
            return Failure(f"at most {100 * MOST_SHARED:g} % of the test samples", text)
        return Note(f"test samples in the training split: {text}")


class DatasetFacts(Facts):
    """What a spec knows of a dataset beside what it declares. data: digest of both splits."""

    data: str = Field(max_length=MAX_NAME)

    @property
    def key_fields(self) -> dict[str, str]:
        return {**super().key_fields, "data": self.data}


class ImportedDataset(Imported, Dataset):
    """A user's dataset."""

    kind = DatasetKind
    source = DatasetFacts

    def load(self, data_dir: Path) -> Data:
        try:
            data: Data = self.own.load(data_dir)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.name}: {located(error)}") from error
        if digest(data) != self.imported.data:
            raise DataError(
                f"{self.name}: gives other samples than when the sweep was loaded; a dataset must not "
                "depend on time, machine or the random state of the process"
            )
        return data
