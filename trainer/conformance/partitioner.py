"""Laws of partitioners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from trainer.components.random_state import scatter_seeds
from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.data.base import DataError, Indices, Labels, Partitioner
from trainer.data.split_rules import BrokenRule, Rule, broken_rules, holders_of
from trainer.user_components.partitioner import FunctionPartitioner, same_parts, seeded_error

Mix = Literal["even", "uneven", "rare"]
FEW = 7  # samples up to which all inputs are tried


@dataclass(frozen=True)
class Case:
    """A training set to split, and the seed of the generator.

    mix: the mix of the classes: even, in turn; uneven, as in real data; rare, all samples but one in
    class 0.
    """

    samples: int
    classes: int
    parts: int
    seed: int = 0
    mix: Mix = "even"

    @property
    def labels(self) -> Labels:
        """int64, shape (samples,)."""
        numbers = np.arange(self.samples)
        if self.mix == "rare":
            last: Labels = (numbers == self.samples - 1).astype(np.int64)
            return last
        if self.mix == "uneven":
            squares = np.random.default_rng(9).integers(0, self.classes**2, self.samples)
            rounded: Labels = np.sqrt(squares).astype(np.int64)
            return rounded
        return numbers % self.classes

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def __str__(self) -> str:
        shown = f", labels {' '.join(map(str, self.labels))}" if self.samples <= 2 * FEW else ""
        samples, parts = _counted(self.samples, "sample"), _counted(self.parts, "part")
        classes = _counted(len(np.unique(self.labels)), "class")
        return f"{samples} of {classes}{shown}, {parts}, seed {self.seed}"


def _counted(number: int, noun: str) -> str:
    plural = noun if number == 1 else noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {plural}"


def cases() -> Iterator[Case]:
    """Training sets from the smallest on; those that cannot be split are among them."""
    for samples in range(1, FEW):
        for parts in range(1, samples + 2):
            for classes in range(1, min(3, samples) + 1):
                yield from (Case(samples, classes, parts, seed) for seed in (0, 1))
    for parts in (1, 4, 50):
        for mix, classes in (("even", 1), ("rare", 2), ("even", 50)):
            yield Case(50, classes, parts, mix=mix)  # type: ignore[arg-type]
    for samples in (1000, 1437):
        for parts in (1, 2, 3, 5, 64, 999, 1000):
            yield Case(samples, 10, parts, mix="uneven")
    for parts in (11, 1000):
        yield Case(parts - 1, 10, parts, mix="uneven")


RULES: dict[Rule, str] = {
    "count": "it gives as many parts as asked",
    "indices": "a part is a 1-D array of integers in range",
    "filled": "no part is empty, or it raises DataError",
    "repeats": "no sample is twice in a part",
    "disjoint": "no sample is in two parts, if declared",
    "covers": "every sample is in a part, if declared",
}
# Splits that every partitioner can be expected to do.
USUAL = (
    Case(1437, 10, 5, mix="uneven"),
    Case(1437, 10, 20, mix="uneven"),
    Case(60_000, 10, 1000, mix="uneven"),
)
SEVERAL = Case(500, 10, 5, 3, mix="uneven")


def smaller(case: Case) -> Iterator[Case]:
    """The case with fewer samples, parts or classes, the biggest steps first."""
    for field, least in (("samples", 1), ("parts", 1), ("classes", 1), ("seed", 0)):
        value = getattr(case, field)
        step = value - least
        while step:
            yield replace(case, **{field: value - step})
            step //= 2
    if case.mix != "even":
        yield replace(case, mix="even")


class Splits:
    """What a partitioner gives for cases, each split once."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner
        self._split = lru_cache(maxsize=None)(self._split_once)
        self.broken = lru_cache(maxsize=None)(self._broken_rules)

    def __call__(self, case: Case) -> list[Indices]:
        """The parts. Raises NotApplicable where the partitioner refuses them or fails."""
        parts, reason = self._split(case)
        if parts is None:
            raise NotApplicable(reason)
        return parts

    def _split_once(self, case: Case) -> tuple[list[Indices] | None, str]:
        try:
            return [*self.anew(case)], ""
        except Exception as error:
            return None, f"it splits no input: {error}"

    def anew(self, case: Case) -> list[Indices]:
        """The parts, computed now. Raises DataError, or what the partitioner raises."""
        if reason := self.states(case):
            raise DataError(reason)
        return self.partitioner.partition(case.labels, case.parts, case.rng)

    def well_formed(self, case: Case) -> list[Indices]:
        """The parts, if all are arrays of indices of the training set."""
        if "indices" in self.broken(case):
            raise NotApplicable("its parts are no indices")
        return self(case)

    def _broken_rules(self, case: Case) -> dict[Rule, BrokenRule]:
        """The rules that the parts break."""
        declared = self.partitioner.disjoint, self.partitioner.covers
        return {each.rule: each for each in broken_rules(self(case), case.samples, case.parts, *declared)}

    def states(self, case: Case) -> str | None:
        """Why the partitioner says, before it is given labels, that it cannot split them."""
        return self.partitioner.validation_error(case.samples, len(np.unique(case.labels)), case.parts)


def laws(partitioner: Partitioner) -> Iterator[Law[Any]]:
    """The laws of a partitioner, in the order in which they are tried."""
    splits = Splits(partitioner)

    def law(name: str, statement: str, test: Callable[[Case], Outcome]) -> Law[Case]:
        return Law(name, statement, test, cases(), smaller)

    yield law("runs", "it gives parts or raises DataError", lambda case: _runs(splits, case))
    yield Law(
        "possible", "it splits usual training sets", lambda case: _possible(splits, case), USUAL, smaller
    )
    for name, statement in RULES.items():
        yield law(name, statement, partial(_rule, splits, name))
    yield Law("declared", "it declares what it keeps", lambda cases: _declared(splits, cases), [[*cases()]])
    yield law("seeded", "equal generators give equal parts", lambda case: _seeded(splits, case))
    yield Law(
        "random", "other seeds give other parts, if random", lambda case: _random(splits, case), [SEVERAL]
    )
    yield law("labels", "it leaves its labels unchanged", lambda case: _labels(splits, case))
    yield law("layout", "labels may lie anywhere in memory", lambda case: _layout(splits, case))
    yield Law(
        "reshuffle",
        "reshuffle is an error unless it is random",
        lambda case: _reshuffle(splits, case),
        USUAL[:1],
    )
    places = [(rank, parts) for parts in (1, 2, 3, 1000) for rank in {0, 1 % parts, parts - 1}]
    yield Law(
        "images",
        "images change as declared, never of part 0",
        lambda place: _images(partitioner, *place),
        [ImagesOf(*place) for place in sorted(places, key=lambda each: each[::-1])],
    )


def _runs(splits: Splits, case: Case) -> Outcome:
    try:
        splits.anew(case)
    except DataError as error:
        raise NotApplicable("it splits no input") from error
    return None


def _possible(splits: Splits, case: Case) -> Outcome:
    try:
        splits.anew(case)
    except DataError as error:
        return Failure("parts", f"DataError: {error}")
    except Exception as error:
        raise NotApplicable(f"it splits no input: {error}") from error
    return None


def _rule(splits: Splits, rule: Rule, case: Case) -> Outcome:
    """Whether the parts keep a rule of `split_rules`."""
    parts, broken = splits(case), splits.broken(case).get(rule)
    if broken:
        return Failure(broken.expected, broken.got)
    if rule == "indices":
        return _too_small(parts)
    if rule != "count":
        splits.well_formed(case)
    if rule in ("disjoint", "covers") and not getattr(splits.partitioner, rule):
        raise NotApplicable(f"it does not declare {rule}")
    return None


def _too_small(parts: list[Indices]) -> Outcome:
    """Whether the type of a part holds the indices of a usual training set."""
    most = USUAL[-1].samples
    for number, part in enumerate(parts):
        if part.dtype.kind in "iu" and np.iinfo(part.dtype).max < most:
            return Failure(
                f"int64, or a type for {most:,} samples", f"part {number} is of type {part.dtype}"
            )
    return None


def _declared(splits: Splits, inputs: list[Case]) -> Outcome:
    """Name what it could declare: what has held for all inputs."""
    keeps = {"disjoint": True, "covers": True}
    tried = 0
    for case in inputs:
        try:
            holders = holders_of(splits.well_formed(case), case.samples)
        except NotApplicable:
            continue
        tried += case.parts > 1
        keeps["disjoint"] &= holders.max(initial=0) <= 1
        keeps["covers"] &= bool(holders.min(initial=1))
    could = [name for name, kept in keeps.items() if kept and not getattr(splits.partitioner, name)]
    if not could or not tried:
        return None
    function = isinstance(splits.partitioner, FunctionPartitioner)
    it = "a subclass of Partitioner" if function else "it"
    return Note(
        f"{it} could declare {' and '.join(f'{name} = True' for name in could)}: held in all splits"
    )


def _seeded(splits: Splits, case: Case) -> Outcome:
    """Equal generators give equal parts, whatever the process has done before."""
    before = [part.copy() for part in splits.well_formed(case)]
    scatter_seeds(1)
    labels = case.labels
    first = splits.partitioner.partition(labels, case.parts, case.rng)
    if failure := seeded_error(first, lambda: splits.anew(case)):
        return failure
    if failure := seeded_error(before, lambda: first):
        return failure
    labels[:] = 0
    if not same_parts(before, first):
        return Failure("equal parts", "parts that change with the labels after the call: return copies")
    return None


def _random(splits: Splits, case: Case) -> Outcome:
    found = [[np.sort(part) for part in splits.well_formed(replace(case, seed=seed))] for seed in (1, 2)]
    same = same_parts(*found)
    if splits.partitioner.random and same:
        function = isinstance(splits.partitioner, FunctionPartitioner)
        fixed = "leave out the parameter `rng`" if function else "declare random = False"
        return Failure("other parts for seeds 1 and 2", f"equal parts; {fixed}, or use `rng`")
    if not splits.partitioner.random and not same:
        return Failure("equal parts for seeds 1 and 2, since random is False", "other parts")
    return None


def _labels(splits: Splits, case: Case) -> Outcome:
    splits(case)
    labels = case.labels
    splits.partitioner.partition(labels, case.parts, case.rng)
    if not np.array_equal(labels, case.labels):
        changed = int(np.flatnonzero(labels != case.labels)[0])
        return Failure(
            "the labels as they were",
            f"label {changed} was {case.labels[changed]} and is {labels[changed]}",
        )
    labels.flags.writeable = False
    splits.partitioner.partition(labels, case.parts, case.rng)
    return None


def _layout(splits: Splits, case: Case) -> Outcome:
    splits.well_formed(case)
    scatter_seeds(1)
    expected = splits.anew(case)
    strided = np.repeat(case.labels, 2)[::2]
    backwards = case.labels[::-1].copy()[::-1]
    for labels, how in ((strided, "with a stride of 2"), (backwards, "that lie backwards in memory")):
        scatter_seeds(1)
        if not same_parts(expected, splits.partitioner.partition(labels, case.parts, case.rng)):
            return Failure("equal parts", f"other parts for labels {how}")
    return None


def _reshuffle(splits: Splits, case: Case) -> Outcome:
    partitioner = splits.partitioner
    again = partitioner.model_copy(update={"reshuffle": True})
    error = again.validation_error(case.samples, case.classes, case.parts)
    if not partitioner.random and error is None:
        return Failure("an error for reshuffle: true, since random is False", "none")
    if partitioner.random and error:
        return Failure("reshuffle: true is allowed", f"the error: {error}")
    return None


def digest(partitioner: Partitioner) -> str:
    """16 hex digits that identify what it gives for a few training sets."""
    found = sha256()
    for case in (SEVERAL, *USUAL[:2]):
        scatter_seeds(1)
        try:
            for part in Splits(partitioner).anew(case):
                found.update(np.asarray(part, np.int64).tobytes() + b";")
        except DataError as error:
            found.update(str(error).encode())
    return found.hexdigest()[:16]


def process_law(partitioner: Partitioner, elsewhere: Callable[[], str]) -> Law[Case]:
    """That its parts do not depend on the process. elsewhere: `digest` in another process."""

    def test(_: Case) -> Outcome:
        if digest(partitioner) == elsewhere():
            return None
        return Failure("equal parts", "other parts: do not depend on time, hashes or the process")

    return Law("process", "another process gives the same parts", test, [SEVERAL])


class ImagesOf(tuple[int, int]):
    """A rank and the number of parts."""

    def __new__(cls, rank: int, parts: int) -> ImagesOf:
        return super().__new__(cls, (rank, parts))

    def __str__(self) -> str:
        return f"7 images of 3×6×5, part {self[0]} of {self[1]}"


def _images(partitioner: Partitioner, rank: int, parts: int) -> Outcome:
    images = np.random.default_rng(0).standard_normal((7, 3, 6, 5)).astype(np.float32)
    before = images.copy()
    images.flags.writeable = False
    seen, again = (
        partitioner.transform_images(images, rank, parts, np.random.default_rng(5)) for _ in range(2)
    )
    if seen.shape != images.shape or seen.dtype != images.dtype:
        return Failure("shape (7, 3, 6, 5) of float32", f"shape {seen.shape} of {seen.dtype}")
    if not np.isfinite(seen).all():
        return Failure("finite pixels", "nan or infinite ones")
    if not np.array_equal(images, before):
        return Failure("its argument unchanged", "changed")
    if not np.array_equal(seen, again):
        return Failure("equal images for equal generators", "other images")
    changes, declared = not np.array_equal(seen, images), partitioner.transforms_images and rank > 0
    if changes == declared:
        return None
    reason = (
        "of the first part" if partitioner.transforms_images and not rank else "as transforms_images says"
    )
    return Failure(
        f"{'changed' if declared else 'unchanged'} images {reason}", "changed" if changes else "unchanged"
    )
