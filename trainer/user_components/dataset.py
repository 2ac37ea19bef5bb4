"""Datasets of users: arrays, or any map-style dataset of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import checked, configured, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent, shortened
from trainer.core.user_code import MAX_NAME, ImportFailure, located
from trainer.data.base import Array, Data, DataError, Dataset, PixelScale, Split

TEST_SHARE = "test_share"  # of the samples, for a dataset without a test split of its own
SPLIT_SEED = "split_seed"
SPLIT_DEFAULTS: dict[str, Any] = {TEST_SHARE: 0.2, SPLIT_SEED: 0}
MAX_SHOWN = 40  # characters of a value in a message
MOST_CLASSES = 1000  # an event has room for them
TYPES = ("float32", "int64", "uint8", "int32", "bool")


class DatasetFacts(Source):
    """What is known of a dataset when a sweep is loaded. data: digest of both splits."""

    train_samples: int = Field(ge=1, le=2**40)
    test_samples: int = Field(ge=1, le=2**40)
    shape: tuple[Annotated[int, Field(ge=0, le=2**40)], ...] = Field(max_length=32)
    input_type: str = Field(max_length=MAX_NAME)
    class_count: int = Field(ge=1, le=MOST_CLASSES)
    data: str = Field(max_length=MAX_NAME)

    @property
    def key_fields(self) -> dict[str, str]:
        return {**super().key_fields, "data": self.data}


class ImportedDataset(ImportedComponent, Dataset):
    """A user's dataset."""

    imported: DatasetFacts

    @property
    def train_samples(self) -> int:
        return self.imported.train_samples

    @property
    def shape(self) -> tuple[int, ...]:
        return self.imported.shape

    @property
    def input_type(self) -> str:
        return self.imported.input_type

    @property
    def class_count(self) -> int:
        return self.imported.class_count

    def load(self, data_dir: Path) -> Data:
        try:
            called = self.imported.load()
            data = load_data(called, self.parameters, data_dir, self.imported.directory)
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


def load_data(
    called: Callable[..., Any], parameters: Mapping[str, Any], data_dir: Path, directory: Path
) -> Data:
    """Both splits of a user's dataset.

    `called` is a subclass of Dataset, or what returns a map-style dataset of (input, target) or a pair of
    arrays (inputs, targets). With a parameter `train` it is called once for each split; otherwise a seeded
    share of its samples is the test split. It may have the parameters `data_dir`, the data directory, and
    `directory`, that of the sweep file.

    Raises:
        ImportFailure: It cannot be called, or the samples do not fit together.
        ParameterFailure: Its parameters are wrong.
    """
    if isinstance(called, type) and issubclass(called, Dataset):
        return configured(called, parameters).load(data_dir)
    given = {"data_dir": data_dir, "directory": directory}
    if "train" in signature_of(called):
        arguments = [checked(called, parameters, {**given, "train": train}) for train in (True, False)]
        train, test = (_samples(called(**each)) for each in arguments)
    else:
        split = {name: parameters.get(name, default) for name, default in SPLIT_DEFAULTS.items()}
        check_split(split)
        rest = {name: value for name, value in parameters.items() if name not in split}
        whole = _samples(called(**checked(called, rest, given)))
        train, test = whole.split(split[TEST_SHARE], split[SPLIT_SEED])
    return _joined(train, test)


def check_split(split: Mapping[str, Any]) -> None:
    """Raise ImportFailure unless the parameters of the seeded split are allowed."""
    share, seed = split[TEST_SHARE], split[SPLIT_SEED]
    if type(share) not in (int, float) or not 0 < share < 1:
        raise ImportFailure(f"{TEST_SHARE} is {share!r}; allowed: a number between 0 and 1")
    if type(seed) is not int or seed < 0:
        raise ImportFailure(f"{SPLIT_SEED} is {seed!r}; allowed: a whole number from 0 on")


@dataclass(frozen=True)
class _Samples:
    """Samples of one split, or of both. classes: their number, if the dataset states it."""

    inputs: Array
    targets: Array
    classes: int | None

    @property
    def have_classes(self) -> bool:
        """Whether targets are classes: whole numbers, one for each sample."""
        return self.targets.ndim == 1 and self.targets.dtype.kind == "i"

    def split(self, share: float, seed: int) -> tuple[_Samples, _Samples]:
        """A training and a test split; at least one sample is in each."""
        count = len(self.inputs)
        if count < 2:
            raise ImportFailure(f"it has {count} samples, and needs at least 2 to be split")
        order = np.random.default_rng(seed).permutation(count)
        tests = min(max(1, round(count * share)), count - 1)
        return self._taken(np.sort(order[tests:])), self._taken(np.sort(order[:tests]))

    def _taken(self, indices: Array) -> _Samples:
        return _Samples(self.inputs[indices], self.targets[indices], self.classes)


def _samples(found: Any) -> _Samples:
    """The samples of what a user's callable returned. There is at least one."""
    arrays = [hasattr(each, "shape") for each in found] if isinstance(found, tuple | list) else []
    if reason := _other_form(found, arrays):
        raise ImportFailure(f"it gives {reason}; {ALLOWED}")
    if len(arrays) == 2 and all(arrays):
        inputs, targets = (np.asarray(each) for each in found)
        if not inputs.ndim or not targets.ndim:
            raise ImportFailure(
                "it gives two numbers; the first dimension of both arrays must count samples"
            )
        if len(inputs) != len(targets):
            raise ImportFailure(f"it has {len(inputs)} inputs and {len(targets)} targets")
    elif hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        items = [_item(found, number) for number in range(len(found))]
        inputs, targets = (_stacked([item[at] for item in items], WHAT[at]) for at in (0, 1))
    else:
        raise ImportFailure(f"it gives an object of {_described(found)}; {ALLOWED}")
    if not len(inputs):
        raise ImportFailure("it has no samples")
    samples = _Samples(_array(inputs, WHAT[0]), _array(targets, WHAT[1]), _stated_classes(found))
    if samples.have_classes:
        _check_classes(samples)
    return samples


WHAT = ("input", "target")
ALLOWED = "allowed: a pair of arrays (inputs, targets), or a map-style dataset of pairs (input, target)"


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
    return None


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
            raise ImportFailure(
                f"items differ in shape: the {what} of item 0 has {items[0].shape}, of item {number} "
                f"{item.shape}"
            )
    return np.stack(items) if items else np.zeros(0)


def _array(values: Array, what: str) -> Array:
    """The values in a type that torch and the run support, in memory of their own."""
    if values.dtype.kind not in "fiub":
        raise ImportFailure(f"the {what}s are of type {values.dtype}{_no_number(values)}; allowed: numbers")
    if values.dtype.kind == "f":
        refuse(numbers_error(values, f"{what}s"))
        with np.errstate(over="ignore"):
            found = np.array(values, np.float32, order="C")
        refuse(numbers_error(found, f"{what}s in float32"))
        return found
    if values.dtype == np.uint64 and (large := values > np.iinfo(np.int64).max).any():
        at = _first(large)
        raise ImportFailure(f"the {what}s hold {values[at]} in {_place(at)}; allowed: numbers of int64")
    keeps = what == "input" and values.dtype.name in TYPES
    return np.array(values, values.dtype if keeps else np.int64, order="C")


def _no_number(values: Array) -> str:
    """Names the first value that is no number, for a message; empty if all are: objects may be."""
    places = (at for at, value in np.ndenumerate(values) if not isinstance(value, int | float | np.number))
    at = next(places, None)
    if at is None:
        return ""
    value: Any = values[at]
    shown = repr(str(value[:MAX_SHOWN])) if isinstance(value, str) else type(value).__name__
    return f", such as {shown} in {_place(at)}"


def _first(wrong: Array) -> tuple[int, ...]:
    """The first place where an array is true; it is somewhere."""
    return tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))


def _place(at: tuple[int, ...]) -> str:
    """A place in inputs or targets, counted from 0."""
    sample, *inside = at
    if not inside:
        return f"sample {sample}"
    return f"sample {sample}, {f'column {inside[0]}' if len(inside) == 1 else f'index {inside}'}"


def _of_samples(wrong: Array) -> str:
    """How many places of an array are true, for a message about the first of them."""
    count = int(wrong.sum())
    if count == 1:
        return ""
    samples = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
    where = "" if wrong.ndim == 1 else f" in {samples:,} sample{'s' * (samples > 1)}"
    return f", the first of {count:,}{where}"


def _stated_classes(found: Any) -> int | None:
    """The number of classes that a dataset states, as torchvision's do in `classes`."""
    stated = getattr(found, "classes", None)
    return len(stated) if isinstance(stated, Sequence) and not isinstance(stated, str) else None


def _joined(train: _Samples, test: _Samples) -> Data:
    scale = _pixel_scale(train.inputs)
    if train.have_classes:
        highest = max(int(each.targets.max()) for each in (train, test))
        classes = highest + 1 if train.classes is None else train.classes
        splits = [Split(each.inputs, each.targets) for each in (train, test)]
    else:
        classes = 1
        splits = [
            Split(each.inputs, np.zeros(len(each.inputs), np.int64), each.targets) for each in (train, test)
        ]
    data = Data(splits[0], splits[1], classes, scale)
    refuse(splits_error(data))
    return data


def _pixel_scale(inputs: Array) -> PixelScale | None:
    """The scale of images; None for other inputs."""
    if inputs.ndim != 4 or inputs.dtype != np.float32:
        return None
    darkest, brightest = inputs.min(), inputs.max()
    ones = np.ones((inputs.shape[1], 1, 1), np.float32)
    contrast = (brightest - darkest) or np.float32(1)
    return PixelScale(-darkest / contrast * ones, ones / contrast)


def _check_classes(samples: _Samples) -> None:
    """Raise ImportFailure if a target is no class."""
    stated, targets = samples.classes, samples.targets
    if stated is not None and stated > MOST_CLASSES:
        raise ImportFailure(f"it states {stated} classes; allowed: at most {MOST_CLASSES}")
    most = MOST_CLASSES if stated is None else stated
    wrong = (targets < 0) | (targets >= most)
    if wrong.any():
        (at,) = _first(wrong)
        raise ImportFailure(
            f"sample {at} has the label {targets[at]}{_of_samples(wrong)}; allowed: 0 to {most - 1}, or "
            "floating-point numbers, which are no classes"
        )


def digest(data: Data) -> str:
    """16 hex digits that identify all samples of both splits, in their order."""
    found = sha256()
    for split in (data.train, data.test):
        for array in (split.inputs, split.targets):
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]


def facts(source: Source, parameters: Mapping[str, Any], data_dir: Path) -> tuple[DatasetFacts, Data]:
    """What a spec says about the dataset, and its samples. Raises ImportFailure or ParameterFailure."""
    called = source.load()
    own = (
        configured(called, parameters) if isinstance(called, type) and issubclass(called, Dataset) else None
    )
    if own is not None:
        own.prepare(data_dir)
    load = partial(load_data, called, parameters, data_dir, source.directory)
    scatter_seeds(1)
    data = load()
    if own is not None:
        refuse(sizes_error(data) or stated_error(own, data))
        refuse(labels_error(data) or finite_error(data))
    refuse(again_error(data, load, seeds=(2,)))  # once: it may take long
    return facts_of(source, data, digest(data)), data


def facts_of(source: Source, data: Data, identity: str) -> DatasetFacts:
    """What a spec says about samples. identity: their digest."""
    return DatasetFacts(
        **dict(source),
        train_samples=len(data.train.labels),
        test_samples=len(data.test.labels),
        shape=data.train.inputs.shape[1:],
        input_type=data.train.inputs.dtype.name,
        class_count=data.classes,
        data=identity,
    )


def sizes_error(data: Data) -> Failure | None:
    """How a split has other numbers of inputs, labels and targets, or none; or None."""
    for name, split in _splits(data):
        counts = {"inputs": len(split.inputs), "labels": len(split.labels), "targets": len(split.targets)}
        if len({*counts.values()}) > 1:
            listed = ", ".join(f"{number} {what}" for what, number in counts.items())
            return Failure(f"equal numbers in the {name} split", listed)
        if not len(split.labels):
            return Failure(f"samples in the {name} split", "none")
    return None


def labels_error(data: Data) -> Failure | None:
    """How labels are none of the dataset's classes; or None."""
    for name, split in _splits(data):
        labels = split.labels
        if labels.dtype != np.int64 or labels.ndim != 1:
            return Failure(
                f"int64 of shape (samples,) in the {name} split", f"{labels.dtype} of {labels.shape}"
            )
        outside = (labels < 0) | (labels >= data.classes)
        if outside.any():
            (at,) = _first(outside)
            return Failure(
                f"labels from 0 to {data.classes - 1}",
                f"{labels[at]} of {name} sample {at}{_of_samples(outside)}",
            )
    return None


def finite_error(data: Data) -> Failure | None:
    """Which numbers of samples are nan or infinite; or None."""
    of = (
        numbers_error(getattr(split, what), f"{name} {what}")
        for name, split in _splits(data)
        for what in ("inputs", "targets")
    )
    return next((failure for failure in of if failure), None)


def numbers_error(values: Array, of: str) -> Failure | None:
    """Which floating-point numbers are nan or infinite; or None. of: what they are, in the plural."""
    if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
        return None
    at = _first(~finite)
    found = f"the {of} hold nan or infinite numbers: {values[at]} in {_place(at)}{_of_samples(~finite)}"
    return Failure("finite numbers", found)


def _splits(data: Data) -> tuple[tuple[str, Split], ...]:
    """Both splits and their names."""
    return ("training", data.train), ("test", data.test)


def splits_error(data: Data) -> Failure | None:
    """How samples of the two splits differ in shape or type; or None."""
    for what in ("inputs", "targets"):
        train, test = (
            f"shape {values.shape[1:]} and type {values.dtype}"
            for values in (getattr(data.train, what), getattr(data.test, what))
        )
        if train != test:
            return Failure(f"test {what} of {train}, as in training", f"test {what} of {test}")
    return None


def stated_error(stated: Dataset, data: Data) -> Failure | None:
    """How a dataset states other samples than it loads; or None."""
    pairs = (
        ("samples", stated.train_samples, len(data.train.labels)),
        ("shape", tuple(stated.shape), data.train.inputs.shape[1:]),
        ("type", stated.input_type, data.train.inputs.dtype.name),
        ("classes", stated.class_count, data.classes),
    )
    differing = ((what, said, found) for what, said, found in pairs if said != found)
    return next(
        (Failure(f"{what} {said}, as stated", f"{what} {found}") for what, said, found in differing), None
    )


def again_error(first: Data, load: Callable[[], Data], seeds: Sequence[int] = (1, 2)) -> Failure | None:
    """How a dataset gives other samples than `first`, loaded after `scatter_seeds(1)`; or None.

    seeds: those of global random state before it is loaded again.
    """
    return repetition_error(first, load, _differing, "use a generator with a seed", seeds)


def _differing(first: Data, second: Data) -> str:
    """Which samples differ, the first of them by its number; empty if none do."""
    for (name, before), (_, now) in zip(_splits(first), _splits(second), strict=True):
        for what in ("inputs", "targets"):
            one, other = (getattr(split, what) for split in (before, now))
            if one.dtype != other.dtype or one.shape != other.shape:
                return f"{name} {what}"
            equal = (one == other) | ((one != one) & (other != other))  # nan
            if not equal.all():
                return f"{what} of {name} sample {_first(~equal)[0]}"
    return ""
