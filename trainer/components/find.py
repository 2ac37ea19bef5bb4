"""Which components a file defines, and of which kind each is."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trainer.components.facts import Source
from trainer.components.kind import Kind
from trainer.components.parameters import is_class, lacking, signature_of
from trainer.core.user_code import TORCHVISION, ImportFailure, load_module
from trainer.spec.registries import REGISTRIES


@cache
def kinds() -> Mapping[str, type[Kind[Any]]]:
    """The kinds of components that users bring, by the fields of a run."""
    return {field: registry.wrapper.kind for field, registry in REGISTRIES.items()}


def kind_of(found: Any) -> str | None:
    """The kind of component that a class or function is; None if that cannot be seen."""
    if isinstance(found, type):
        own = [name for name, kind in kinds().items() if is_class(found, kind.base)]
        others = [name for name, kind in kinds().items() if kind.recognises(found)]
        return next(iter([*own, *reversed(others)]), None)  # a loss is a module of torch, as is a model
    if not callable(found):
        return None
    names = {*signature_of(found)}
    matching = (name for name, kind in kinds().items() if kind.arguments and {*kind.arguments} <= names)
    return next(matching, None)


def components(directory: Path, file: str) -> Iterator[tuple[str, str]]:
    """Kind and name of each class and function that a file defines, in its order; kind "" if it is unclear.

    Names with a leading underscore are left out, and abstract classes that are meant to be. Any other
    abstract class lacks a method, as a check shows. The kind of a function with the parameter `lr` alone is
    unclear: it may train.

    Raises:
        ImportFailure: The file cannot be imported.
    """
    module = load_module(directory, file)
    defined = {
        name: value
        for name, value in vars(module).items()
        if (isinstance(value, type) or inspect.isfunction(value)) and value.__module__ == module.__name__
    }
    classes = [value for value in defined.values() if isinstance(value, type)]
    for name, value in defined.items():
        if name.startswith("_") or (isinstance(value, type) and _is_base(value, classes)):
            continue
        kind = kind_of(value) or ""
        yield "" if kind == "optimizer" and inspect.isfunction(value) else kind, name


def _is_base(found: type, others: Iterable[type]) -> bool:
    """Whether an abstract class is one on purpose: it has a subclass, or an abstract method of its own."""
    if not inspect.isabstract(found):
        return False
    inherited = any(other is not found and issubclass(other, found) for other in others)
    return inherited or any(getattr(each, "__isabstractmethod__", False) for each in vars(found).values())


def stated_kind(source: Source, wanted: str) -> str:
    """The kind of one component. wanted: the user's choice; empty: find it out. Raises ImportFailure."""
    found = source.load()
    kind = wanted or ("model" if source.module == TORCHVISION else kind_of(found))
    if kind is None:
        raise ImportFailure(
            f"{source.attribute} is of type {type(found).__name__}, and its kind is unclear; give --kind"
        )
    if isinstance(found, type) and (lack := lacking(found)):
        raise ImportFailure(f"{source.attribute} {lack}")
    return kind
