"""Partitioners of users: a subclass of Partitioner, or a function of labels, parts and optionally `rng`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import model_validator

from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import POSITIONAL, bound, configured, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.core.user_code import ImportFailure, located
from trainer.data.base import DataError, Images, Indices, Labels, Partitioner

FLAGS = ("disjoint", "covers", "random", "transforms_images", "needs_classes")


class PartitionerFacts(Source):
    """What is known of a partitioner when a sweep is loaded: what its class declares."""

    disjoint: bool
    covers: bool
    random: bool
    transforms_images: bool
    needs_classes: bool


class ImportedPartitioner(ImportedComponent, Partitioner):
    """A user's partitioner."""

    imported: PartitionerFacts

    @model_validator(mode="before")
    @classmethod
    def _reshuffle(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "reshuffle": values.get("parameters", {}).get("reshuffle", False)}

    @property
    def disjoint(self) -> bool:  # type: ignore[override]
        return self.imported.disjoint

    @property
    def covers(self) -> bool:  # type: ignore[override]
        return self.imported.covers

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.imported.random

    @property
    def transforms_images(self) -> bool:  # type: ignore[override]
        return self.imported.transforms_images

    @property
    def needs_classes(self) -> bool:  # type: ignore[override]
        return self.imported.needs_classes

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        try:
            return build(self.imported, self.parameters).partition(labels, parts, rng)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.name}: {located(error)}") from error

    def transform_images(self, images: Images, rank: int, parts: int, rng: np.random.Generator) -> Images:
        return build(self.imported, self.parameters).transform_images(images, rank, parts, rng)


class FunctionPartitioner(Partitioner):
    """A function as a partitioner, which is random. It declares neither disjoint nor covers."""

    disjoint: ClassVar[bool] = False
    covers: ClassVar[bool] = False

    function: Any

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        return [np.asarray(part) for part in self.function(labels, parts, rng)]


class FixedFunctionPartitioner(FunctionPartitioner):
    """A function without a generator, which gives the same parts for every seed."""

    random: ClassVar[bool] = False

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        return [np.asarray(part) for part in self.function(labels, parts)]


def build(source: Source, parameters: Mapping[str, Any]) -> Partitioner:
    """The partitioner. Raises ImportFailure or ParameterFailure."""
    called = source.load()
    if isinstance(called, type) and issubclass(called, Partitioner):
        return configured(called, parameters)
    parameters = dict(parameters)
    reshuffle = parameters.pop("reshuffle", False)
    if not isinstance(reshuffle, bool):
        raise ImportFailure(f"reshuffle is {reshuffle!r}; allowed: true, false")
    if takes_generator(called):
        function = bound(called, parameters, ("labels", "parts", "rng"))
        return FunctionPartitioner(reshuffle=reshuffle, function=function)
    function = bound(called, parameters, ("labels", "parts"))
    return FixedFunctionPartitioner(reshuffle=reshuffle, function=function)


def takes_generator(called: Callable[..., Any]) -> bool:
    """Whether a function has a third parameter for a generator: `rng`, or one without a default."""
    third = [*signature_of(called).values()][2:3]
    return any(
        each.name == "rng" or (each.default is each.empty and each.kind in POSITIONAL) for each in third
    )


def seeded_error(first: list[Indices], split: Callable[[], list[Indices]]) -> Failure | None:
    """How an equal generator gives other parts than `first`, split after `scatter_seeds(1)`; or None."""
    return repetition_error(
        first, split, lambda *both: "" if same_parts(*both) else "parts", "draw from `rng` only"
    )


def same_parts(one: list[Indices], other: list[Indices]) -> bool:
    """Whether two splits have equal parts in the same order."""
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def facts(source: Source, parameters: Mapping[str, Any], labels: Labels, parts: int) -> PartitionerFacts:
    """What a spec says about the partitioner, after it has split these labels. Raises ImportFailure."""
    own = build(source, parameters)
    if reason := own.validation_error(len(labels), len(np.unique(labels)), parts):
        raise ImportFailure(reason)

    def split() -> list[Indices]:
        return own.partition(labels.copy(), parts, np.random.default_rng(0))

    scatter_seeds(1)
    try:
        first = split()
    except DataError as error:
        raise ImportFailure(str(error)) from error
    if defect := own.split_error(first, len(labels), parts):
        raise ImportFailure(f"split among {parts}: {defect}")
    refuse(seeded_error(first, split))
    declared: dict[str, Any] = {flag: bool(getattr(own, flag)) for flag in FLAGS}
    return PartitionerFacts(**dict(source), **declared)
