"""Augmentations of users: a subclass of Augmentation, or a function of inputs and a generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.core.registry import ImportedComponent
from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale
from trainer.user_components.model import scatter_seeds
from trainer.user_components.signature import bound, configured
from trainer.user_components.source import ImportFailure, Source

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
    import torch

    called = source.load()
    if isinstance(called, type) and issubclass(called, Augmentation):
        own = configured(called, parameters)
        if reason := own.validation_error(tuple(inputs.shape[1:])):
            raise ImportFailure(reason)
    augment = build(source, parameters, scale, "cpu")
    if augment is None:
        return source
    before, found = inputs.clone(), []
    for seed in (1, 2):
        scatter_seeds(seed)
        found.append(augment(inputs, np.random.default_rng(0)))
    if not isinstance(found[0], torch.Tensor):
        raise ImportFailure(f"it returns {type(found[0]).__name__}; it must return a tensor")
    if not torch.equal(before, inputs):
        raise ImportFailure("it changes its argument; it must return new inputs")
    if found[0].shape != inputs.shape or found[0].dtype != inputs.dtype:
        raise ImportFailure(
            f"it returns shape {tuple(found[0].shape)} of {found[0].dtype} for inputs of shape "
            f"{tuple(inputs.shape)} of {inputs.dtype}; they must be the same"
        )
    if not torch.equal(*found):
        raise ImportFailure(
            "it gives other inputs for an equal generator: it draws from global random state; draw from "
            "its argument `rng` only"
        )
    return source
