"""Which components a file defines, and of which kind each is."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.components.facts import Source
from trainer.components.parameters import lacking, signature_of
from trainer.core.registry import Component
from trainer.core.strategy import Strategy
from trainer.core.user_code import TORCHVISION, ImportFailure, load_module
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Dataset, Partitioner
from trainer.losses.base import Loss
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer

OWN: dict[str, type[Component]] = {
    "partitioner": Partitioner,
    "strategy": Strategy,
    "model": Model,
    "dataset": Dataset,
    "optimizer": Optimizer,
    "loss": Loss,
    "augmentation": Augmentation,
}
# Parameters by which a function is recognised; those of a model, a dataset or an optimizer have any names.
# An nn.Module whose forward pass has those of a loss is a loss.
SIGNATURES = {
    "partitioner": {"labels", "parts"},
    "augmentation": {"inputs", "rng"},
    "loss": {"output", "target"},
}


def kind_of(found: Any) -> str | None:
    """The kind of component that a class or function is; None if that cannot be seen."""
    if isinstance(found, type):
        return next((kind for kind, base in OWN.items() if issubclass(found, base)), None) or _torch_kind(
            found
        )
    if not callable(found):
        return None
    names = {*signature_of(found)}
    matching = (kind for kind, needed in SIGNATURES.items() if needed <= names)
    return next(matching, "optimizer" if "lr" in names else None)


def _torch_kind(found: type) -> str | None:
    from torch import nn, optim
    from torch.nn.modules.loss import _Loss
    from torch.utils.data import Dataset as TorchDataset

    if issubclass(found, nn.Module) and SIGNATURES["loss"] <= {*signature_of(found.forward)}:
        return "loss"
    kinds = {"loss": _Loss, "model": nn.Module, "dataset": TorchDataset, "optimizer": optim.Optimizer}
    return next((kind for kind, base in kinds.items() if issubclass(found, base)), None)


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
