"""Partitioners: a subclass of Partitioner, or a function of labels, parts and optionally `rng`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from pydantic import model_validator

from trainer.components.facts import Imported, Source
from trainer.components.kind import Elsewhere, Input, Kind, NotApplicable, Note, Verdict, counted, law
from trainer.components.parameters import POSITIONAL, bound, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure, located
from trainer.data.base import DataError, Images, Indices, Labels, Partitioner
from trainer.data.split_rules import BrokenRule, Rule, broken_rules, holders_of

FEW = 7  # samples up to which all inputs are tried
MOST_PARTS = 64  # into which the labels of a run are split when a sweep is loaded


class FunctionPartitioner(Partitioner):
    """A function as a partitioner, which is random. It declares neither disjoint nor covers."""

    function: Any

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        return [np.asarray(part) for part in self.function(labels, parts, rng)]


class FixedFunctionPartitioner(FunctionPartitioner):
    """A function without a generator, which gives the same parts for every seed."""

    random: ClassVar[bool] = False

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        return [np.asarray(part) for part in self.function(labels, parts)]


def takes_generator(called: Callable[..., Any]) -> bool:
    """Whether a function has a third parameter for a generator: `rng`, or one without a default."""
    third = [*signature_of(called).values()][2:3]
    return any(
        each.name == "rng" or (each.default is each.empty and each.kind in POSITIONAL) for each in third
    )


class Case(Input):
    """A training set to split, and the seed of the generator.

    mix: the mix of the classes: even, in turn; uneven, as in real data; rare, all samples but one in
    class 0; given, the labels of the run.
    """

    samples: Annotated[int, Interval(ge=1, le=100_000)]
    classes: Annotated[int, Interval(ge=1, le=1000)]
    parts: Annotated[int, Interval(ge=1, le=1000)]
    seed: Annotated[int, Interval(ge=0, le=99)] = 0
    mix: Literal["even", "uneven", "rare", "given"] = "even"

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
        samples, parts = counted(self.samples, "sample"), counted(self.parts, "part")
        classes = counted(len(np.unique(self.labels)), "class")
        return f"{samples} of {classes}{shown}, {parts}, seed {self.seed}"


def _case(samples: int, classes: int, parts: int, seed: int = 0, mix: Any = "even") -> Case:
    return Case(samples=samples, classes=classes, parts=parts, seed=seed, mix=mix)


@cache
def cases() -> tuple[Case, ...]:
    """Training sets from the smallest on; those that cannot be split are among them."""
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    for samples in range(1, FEW):
        for parts in range(1, samples + 2):
            for classes in range(1, min(3, samples) + 1):
                yield from (_case(samples, classes, parts, seed) for seed in (0, 1))
    for parts in (1, 4, 50):
        for mix, classes in (("even", 1), ("rare", 2), ("even", 50)):
            yield _case(50, classes, parts, mix=mix)
    for samples in (1000, 1437):
        for parts in (1, 2, 3, 5, 64, 999, 1000):
            yield _case(samples, 10, parts, mix="uneven")
    for parts in (11, 1000):
        yield _case(parts - 1, 10, parts, mix="uneven")


# Splits that every partitioner can be expected to do.
USUAL = (
    _case(1437, 10, 5, mix="uneven"),
    _case(1437, 10, 20, mix="uneven"),
    _case(60_000, 10, 1000, mix="uneven"),
)
LARGEST = _case(200, 12, 12, 3, mix="uneven")  # of those that are searched
GIVEN = _case(1, 1, 1, mix="given")
SEVERAL = _case(500, 10, 5, 3, mix="uneven")


class Part(Input):
    """The images of one part."""

    rank: Annotated[int, Interval(ge=0, le=999)]
    parts: Annotated[int, Interval(ge=1, le=1000)]

    def __str__(self) -> str:
        return f"7 images of 3×6×5, part {self.rank} of {self.parts}"


PARTS = tuple(
    Part(rank=rank, parts=parts) for parts in (1, 2, 3, 1000) for rank in sorted({0, 1 % parts, parts - 1})
)


def same_parts(one: Sequence[Indices], other: Sequence[Indices]) -> bool:
    """Whether two splits have equal parts in the same order."""
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _keeps(rule: Rule, statement: str) -> Any:
    """The law that parts keep a rule of `split_rules`."""

    def test(self: PartitionerKind, case: Case) -> Verdict:
        return self.keeps(rule, case)

    test.__name__ = rule
    return law(statement, more=LARGEST, at_loading=True)(test)


class PartitionerKind(Kind[Partitioner]):
    """A partitioner that is tried. Each split is computed once."""

    name = "partitioner"
    base = Partitioner
    arguments = ("labels", "parts")
    most_ranks = MOST_PARTS

    def __init__(self, own: Partitioner, on: Any = None) -> None:
        super().__init__(own, on)
        self.split = lru_cache(maxsize=None)(self._split)
        self.broken = lru_cache(maxsize=None)(self._broken_rules)

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Partitioner:
        parameters = dict(parameters)
        reshuffle = parameters.pop("reshuffle", False)
        if not isinstance(reshuffle, bool):
            raise ImportFailure(f"reshuffle is {reshuffle!r}; allowed: true, false")
        if takes_generator(called):
            function = bound(called, parameters, ("labels", "parts", "rng"))
            return FunctionPartitioner(reshuffle=reshuffle, function=function)
        function = bound(called, parameters, ("labels", "parts"))
        return FixedFunctionPartitioner(reshuffle=reshuffle, function=function)

    @property
    def inputs(self) -> Sequence[Case]:
        return [self._given] if self.on.loading else cases()

    @property
    def _given(self) -> Case:
        """The labels of the run, split among its replicas."""
        labels = self.labels_of(GIVEN)
        return _case(len(labels), len(np.unique(labels)), self.on.ranks, mix="given")

    @property
    def usual(self) -> Sequence[Case]:
        return [self._given] if self.on.loading else USUAL

    def labels_of(self, case: Case) -> Labels:
        """The labels of a training set, in memory of their own."""
        return self.on.few.labels.copy() if case.mix == "given" and self.on.few else case.labels

    def _split(self, case: Case) -> tuple[list[Indices], str]:
        try:
            return [*self.anew(case)], ""
        except Exception as error:
            return [], f"it splits no input: {error}"

    def parts(self, case: Case) -> list[Indices]:
        """The parts of a case. Raises NotApplicable where the partitioner refuses it or fails."""
        parts, reason = self.split(case)
        if reason:
            raise NotApplicable(reason)
        return parts

    def anew(self, case: Case) -> list[Indices]:
        """The parts, computed now. Raises DataError, or what the partitioner raises."""
        labels = self.labels_of(case)
        if reason := self.own.validation_error(len(labels), len(np.unique(labels)), case.parts):
            raise DataError(reason)
        return self.own.partition(labels, case.parts, case.rng)

    def well_formed(self, case: Case) -> list[Indices]:
        """The parts, if all are arrays of indices of the training set."""
        if "indices" in self.broken(case):
            raise NotApplicable("its parts are no indices")
        return self.parts(case)

    def _broken_rules(self, case: Case) -> dict[Rule, BrokenRule]:
        """The rules that the parts break."""
        declared = self.own.disjoint, self.own.covers
        return {
            each.rule: each for each in broken_rules(self.parts(case), case.samples, case.parts, *declared)
        }

    @law("it gives parts or raises DataError", more=LARGEST, at_loading=True)
    def runs(self, case: Case) -> Verdict:
        try:
            self.anew(case)
        except DataError as error:
            raise NotApplicable("it splits no input") from error
        return None

    @law("it splits usual training sets", lambda self: self.usual, at_loading=True)
    def possible(self, case: Case) -> Verdict:
        try:
            self.anew(case)
        except DataError as error:
            return Failure("parts", f"DataError: {error}")
        except Exception as error:
            raise NotApplicable(f"it splits no input: {error}") from error
        return None

    count = _keeps("count", "it gives as many parts as asked")
    indices = _keeps("indices", "a part is a 1-D array of integers in range")
    filled = _keeps("filled", "no part is empty, or it raises DataError")
    repeats = _keeps("repeats", "no sample is twice in a part")
    disjoint = _keeps("disjoint", "no sample is in two parts, if declared")
    covers = _keeps("covers", "every sample is in a part, if declared")

    def keeps(self, rule: Rule, case: Case) -> Verdict:
        """Whether the parts keep a rule."""
        if broken := self.broken(case).get(rule):
            return broken
        if rule == "indices":
            return _too_small(self.parts(case))
        if rule != "count":
            self.well_formed(case)
        if rule in ("disjoint", "covers") and not getattr(self.own, rule):
            raise NotApplicable(f"it does not declare {rule}")
        return None

    @law("it declares what it keeps", lambda self: [SEVERAL])
    def declared(self, _: Case) -> Verdict:
        """Name what it could declare: what holds for all inputs."""
        keeps = {"disjoint": True, "covers": True}
        several = False
        for case in cases():
            with suppress(NotApplicable):
                holders = holders_of(self.well_formed(case), case.samples)
                several |= case.parts > 1
                keeps["disjoint"] &= holders.max(initial=0) <= 1
                keeps["covers"] &= bool(holders.min(initial=1))
        could = [name for name, kept in keeps.items() if kept and not getattr(self.own, name)]
        if not could or not several:
            return None
        it = "a subclass of Partitioner" if self._is_function else "it"
        return Note(
            f"{it} could declare {' and '.join(f'{name} = True' for name in could)}: held in all splits"
        )

    @property
    def _is_function(self) -> bool:
        return isinstance(self.own, FunctionPartitioner)

    @law("equal generators give equal parts", more=LARGEST, at_loading=True)
    def seeded(self, case: Case) -> Verdict:
        """Whatever the process has done before."""
        before = [part.copy() for part in self.well_formed(case)]
        scatter_seeds(1)
        labels = self.labels_of(case)
        first = self.own.partition(labels, case.parts, case.rng)
        for one, again in ((first, lambda: self.anew(case)), (before, lambda: first)):
            if failure := repetition_error(one, again, _differing, "draw from `rng` only"):
                return failure
        labels[:] = 0
        if not same_parts(before, first):
            return Failure("equal parts", "parts that change with the labels after the call: return copies")
        return None

    @law("other seeds give other parts, if random", lambda self: [SEVERAL])
    def random(self, case: Case) -> Verdict:
        seeded = (case.model_copy(update={"seed": seed}) for seed in (1, 2))
        same = same_parts(*([np.sort(part) for part in self.well_formed(each)] for each in seeded))
        if self.own.random and same:
            fixed = "leave out the parameter `rng`" if self._is_function else "declare random = False"
            return Failure("other parts for seeds 1 and 2", f"equal parts; {fixed}, or use `rng`")
        if not self.own.random and not same:
            return Failure("equal parts for seeds 1 and 2, since random is False", "other parts")
        return None

    @law("it leaves its labels unchanged", more=LARGEST, at_loading=True)
    def labels(self, case: Case) -> Verdict:
        self.parts(case)
        labels, before = self.labels_of(case), self.labels_of(case)
        self.own.partition(labels, case.parts, case.rng)
        if not np.array_equal(labels, before):
            at = int(np.flatnonzero(labels != before)[0])
            return Failure("the labels as they were", f"label {at} was {before[at]} and is {labels[at]}")
        labels.flags.writeable = False
        self.own.partition(labels, case.parts, case.rng)
        return None

    @law("labels may lie anywhere in memory", more=LARGEST)
    def layout(self, case: Case) -> Verdict:
        self.well_formed(case)
        scatter_seeds(1)
        expected = self.anew(case)
        strided = np.repeat(case.labels, 2)[::2]
        backwards = case.labels[::-1].copy()[::-1]
        for labels, how in ((strided, "with a stride of 2"), (backwards, "that lie backwards in memory")):
            scatter_seeds(1)
            if not same_parts(expected, self.own.partition(labels, case.parts, case.rng)):
                return Failure("equal parts", f"other parts for labels {how}")
        return None

    @law("reshuffle is an error unless it is random", lambda self: USUAL[:1])
    def reshuffle(self, case: Case) -> Verdict:
        again = self.own.model_copy(update={"reshuffle": True})
        error = again.validation_error(case.samples, case.classes, case.parts)
        if not self.own.random and error is None:
            return Failure("an error for reshuffle: true, since random is False", "none")
        if self.own.random and error:
            return Failure("reshuffle: true is allowed", f"the error: {error}")
        return None

    @law("images change as declared, never of part 0", lambda self: PARTS)
    def images(self, part: Part) -> Verdict:
        images = np.random.default_rng(0).standard_normal((7, 3, 6, 5)).astype(np.float32)
        before = images.copy()
        images.flags.writeable = False
        seen, again = (
            self.own.transform_images(images, part.rank, part.parts, np.random.default_rng(5))
            for _ in range(2)
        )
        if seen.shape != images.shape or seen.dtype != images.dtype:
            return Failure("shape (7, 3, 6, 5) of float32", f"shape {seen.shape} of {seen.dtype}")
        if not np.isfinite(seen).all():
            return Failure("finite pixels", "nan or infinite ones")
        if not np.array_equal(images, before):
            return Failure("its argument unchanged", "changed")
        if not np.array_equal(seen, again):
            return Failure("equal images for equal generators", "other images")
        changes, transforms = not np.array_equal(seen, images), self.own.transforms_images
        if changes == (transforms and part.rank > 0):
            return None
        reason = "of the first part" if transforms and not part.rank else "as transforms_images says"
        expected, got = ("unchanged", "changed") if changes else ("changed", "unchanged")
        return Failure(f"{expected} images {reason}", got)

    def digest(self) -> str:
        """16 hex digits that identify the parts of a few training sets."""
        found = sha256()
        for case in (SEVERAL, *USUAL[:2]):
            scatter_seeds(1)
            try:
                for part in self.anew(case):
                    found.update(np.asarray(part, np.int64).tobytes() + b";")
            except DataError as error:
                found.update(str(error).encode())
        return found.hexdigest()[:16]

    @law("another process gives the same parts", across=True)
    def process(self, elsewhere: Elsewhere) -> Verdict:
        return elsewhere.difference(self.digest(), "parts")


def _differing(one: Sequence[Indices], other: Sequence[Indices]) -> str:
    return "" if same_parts(one, other) else "parts"


def _too_small(parts: Sequence[Indices]) -> Verdict:
    """Whether the type of a part holds the indices of a usual training set."""
    most = USUAL[-1].samples
    for number, part in enumerate(parts):
        if part.dtype.kind in "iu" and np.iinfo(part.dtype).max < most:
            return Failure(
                f"int64, or a type for {most:,} samples", f"part {number} is of type {part.dtype}"
            )
    return None


class ImportedPartitioner(Imported, Partitioner):
    """A user's partitioner."""

    kind = PartitionerKind

    @model_validator(mode="before")
    @classmethod
    def _reshuffle(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "reshuffle": values.get("parameters", {}).get("reshuffle", False)}

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        try:
            found: list[Indices] = self.own.partition(labels, parts, rng)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.name}: {located(error)}") from error
        return found

    def transform_images(self, images: Images, rank: int, parts: int, rng: np.random.Generator) -> Images:
        changed: Images = self.own.transform_images(images, rank, parts, rng)
        return changed
