"""Laws of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from trainer.components.random_state import scatter_seeds
from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.data.base import Data, Dataset, Split
from trainer.user_components.dataset import (
    again_error,
    digest,
    finite_error,
    labels_error,
    sizes_error,
    splits_error,
    stated_error,
)

MOST_SHARED = 0.05  # of the test split; real datasets have a few samples twice


@dataclass(frozen=True)
class Loaded:
    """A dataset, loaded once."""

    found: Data | None = None

    def __str__(self) -> str:
        if self.found is None:
            return "both splits"
        return f"{len(self.data.train.labels):,} training and {len(self.data.test.labels):,} test samples"

    @property
    def data(self) -> Data:
        """The samples. Raises NotApplicable if there are none."""
        if self.found is None:
            raise NotApplicable("it does not load")
        return self.found


def laws(
    load: Callable[[], Data], stated: Dataset | None, elsewhere: Callable[[], str]
) -> Iterator[Law[Any]]:
    """The laws of a dataset.

    load: reads both splits. stated: what it states about them without reading; None: nothing. elsewhere:
    the digest of the samples that another process loads.
    """
    kept = Loaded()

    def runs(_: Loaded) -> Outcome:
        nonlocal kept
        scatter_seeds(1)
        kept = Loaded(load())
        return None

    def law(name: str, statement: str, test: Callable[[Loaded], Outcome]) -> Law[Loaded]:
        return Law(name, statement, test, [kept])

    yield Law("runs", "both splits load", runs, [kept], essential=True)
    yield law("sizes", "as many inputs as labels and targets", lambda each: sizes_error(each.data))
    yield law("stated", "samples, shape and classes are as stated", lambda each: _stated(each, stated))
    yield law("labels", "labels are int64, 0 to classes - 1", _labels)
    yield law("numbers", "numbers are finite", lambda each: finite_error(each.data))
    yield law("again", "it gives the same samples again", lambda each: again_error(each.data, load))
    yield law("process", "another process loads the same samples", lambda each: _elsewhere(each, elsewhere))
    yield law("apart", "no test sample is in the training split", _apart)


def _stated(loaded: Loaded, stated: Dataset | None) -> Outcome:
    if failure := splits_error(loaded.data):
        return failure
    if stated is None:
        raise NotApplicable("it states nothing")
    return stated_error(stated, loaded.data)


def _labels(loaded: Loaded) -> Outcome:
    if failure := labels_error(loaded.data):
        return failure
    classes, labels = loaded.data.classes, loaded.data.train.labels
    without = sorted({*range(classes)} - {*labels.tolist()})
    if not without:
        return None
    listed = ", ".join(map(str, without[:5])) + (", …" if len(without) > 5 else "")
    return Note(
        f"no training sample is of class {listed}: labels are {labels.min()} to {labels.max()}, and it has "
        f"{classes} classes, 0 to {classes - 1}"
    )


def _elsewhere(loaded: Loaded, elsewhere: Callable[[], str]) -> Outcome:
    same = elsewhere() == digest(loaded.data)
    return None if same else Failure("equal samples", "other ones: do not depend on time, hash or process")


def _apart(loaded: Loaded) -> Outcome:
    """Samples with equal inputs and targets. A few are worth knowing, many are a mistake."""
    train, test = loaded.data.train, loaded.data.test
    known = {sample: at for at, sample in enumerate(_samples(train))}
    both = [(at, known[sample]) for at, sample in enumerate(_samples(test)) if sample in known]
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


def _samples(split: Split) -> Iterator[bytes]:
    """A digest of each sample's input and target."""
    for image, target in zip(split.inputs, split.targets, strict=True):
        yield sha256(image.tobytes() + np.asarray(target).tobytes()).digest()
