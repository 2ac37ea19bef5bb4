"""Augmentations of users: a subclass of Augmentation, or a function of inputs and a generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import bound, configured
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.core.user_code import ImportFailure
from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale

if TYPE_CHECKING:
    from torch import Tensor


class ImportedAugmentation(ImportedComponent, Augmentation):
    """A user's augmentation."""

    imported: Source

    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        return build(self.imported, self.parameters, scale, device)


def build(
    source: Source, parameters: Mapping[str, Any], scale: PixelScale | None, device: str
) -> Augment | None:
    """The function that augments a batch. Raises ImportFailure or ParameterFailure."""
    called = source.load()
    if isinstance(called, type) and issubclass(called, Augmentation):
        return configured(called, parameters).build(scale, device)
    return bound(called, parameters, ("inputs", "rng"))


def facts(
    source: Source, parameters: Mapping[str, Any], inputs: Tensor, scale: PixelScale | None
) -> Source:
    """What a spec says about the augmentation, after it was tried on some inputs. Raises ImportFailure."""
    called = source.load()
    if isinstance(called, type) and issubclass(called, Augmentation):
        own = configured(called, parameters)
        if reason := own.validation_error(tuple(inputs.shape[1:])):
            raise ImportFailure(reason)
    augment = build(source, parameters, scale, "cpu")
    if augment is not None:
        for law in (output_error, argument_error, shape_error, seeded_error):
            refuse(law(augment, inputs))
    return source


def output_error(augment: Augment, inputs: Tensor, seed: int = 0) -> Failure | None:
    """How what it returns is no tensor; or None."""
    import torch

    output: Any = augment(inputs.clone(), np.random.default_rng(seed))
    return (
        None
        if isinstance(output, torch.Tensor)
        else Failure("a tensor", f"an output of type {type(output).__name__}")
    )


def argument_error(augment: Augment, inputs: Tensor) -> Failure | None:
    """How it changes its argument; or None."""
    given = inputs.clone()
    augment(given, np.random.default_rng(0))
    if count := int((given != inputs).sum()):
        changed = f"{count} of {inputs.numel()} numbers of its argument changed"
        return Failure("its argument as before, and new inputs", changed)
    return None


def shape_error(augment: Augment, inputs: Tensor) -> Failure | None:
    """How it changes shape or type of inputs; or None."""
    output = augment(inputs.clone(), np.random.default_rng(0))
    found, expected = (
        f"inputs of shape {tuple(each.shape)} and type {each.dtype}" for each in (output, inputs)
    )
    return None if found == expected else Failure(expected, found)


def seeded_error(augment: Augment, inputs: Tensor) -> Failure | None:
    """How equal generators give other inputs; or None."""
    import torch

    def compute() -> Tensor:
        return augment(inputs.clone(), np.random.default_rng(0))

    scatter_seeds(1)
    return repetition_error(
        compute(), compute, lambda *both: "" if torch.equal(*both) else "inputs", "draw from `rng` only"
    )
