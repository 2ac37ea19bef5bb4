"""Laws of augmentations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.components.samples import taken
from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale
from trainer.user_components.augmentation import argument_error, output_error, seeded_error, shape_error

if TYPE_CHECKING:
    from torch import Tensor

TAKEN = 16  # seeds with which an augmentation must take inputs, also if it changes few batches
SEEDS = 64  # one of which changes inputs, also if an augmentation changes few batches
SHAPES = ((3, 8, 8), (1, 8, 8), (3, 32, 32), (1, 28, 28), (8,))


@dataclass(frozen=True)
class Batch:
    """A batch of inputs of a shape, and the seed of the generator. given: some inputs; None: noise."""

    shape: tuple[int, ...]
    samples: int
    given: Tensor | None = None

    def __str__(self) -> str:
        noun = "input" if self.samples == 1 else "inputs"
        return f"{self.samples} {noun} of shape {'×'.join(map(str, self.shape))}, seed 0"

    @property
    def inputs(self) -> Tensor:
        """The inputs in memory of their own, channels_last for images, as in training. Noise is float32."""
        import torch

        if self.given is None:
            drawn = torch.randn(self.samples, *self.shape, generator=torch.Generator().manual_seed(1))
        else:
            drawn = self.given[taken(len(self.given), self.samples)]
        return drawn.contiguous(memory_format=torch.channels_last) if drawn.dim() == 4 else drawn

    @property
    def scale(self) -> PixelScale | None:
        """The scale of images whose pixels are about 0 to 1."""
        if len(self.shape) != 3:
            return None
        ones = np.ones((self.shape[0], 1, 1), np.float32)
        return PixelScale(ones * np.float32(0.5), ones * np.float32(0.25))


def laws(
    augmentation: Augmentation, shape: tuple[int, ...] | None = None, given: Tensor | None = None
) -> Iterator[Law[Any]]:
    """The laws of an augmentation.

    shape: the shape of an input; None: images and vectors of several shapes. given: some inputs; None:
    noise.
    """
    shapes = [shape] if shape else [each for each in SHAPES if takes(augmentation, each)] or [SHAPES[0]]
    batches = [Batch(each, samples, given) for each in shapes for samples in (1, 5)]
    law = partial(Law[Batch], inputs=batches)

    def tried(error: Callable[[Augment, Tensor], Outcome]) -> Callable[[Batch], Outcome]:
        return lambda batch: error(*_built(augmentation, batch))

    yield law("runs", "it augments a batch", lambda batch: _runs(augmentation, batch), essential=True)
    yield law("shape", "shape, type and memory format stay", tried(_shape))
    yield law("argument", "it leaves its argument unchanged", tried(argument_error))
    yield law("seeded", "equal generators give equal inputs", tried(seeded_error))
    yield Law(
        "changes",
        "it changes inputs",
        lambda each: _changes(augmentation, each),
        [Batch(shapes[0], 64, given)],
    )
    yield law("finite", "numbers stay finite", tried(_finite))


def takes(augmentation: Augmentation, shape: tuple[int, ...], given: Tensor | None = None) -> bool:
    """Whether it augments inputs of a shape, also where chance decides. given: some inputs; None: noise."""
    batch = Batch(shape, 2, given)
    try:
        return all(_runs(augmentation, batch, seed) is None for seed in range(TAKEN))
    except Exception:  # it does not take inputs of this shape
        return False


def _built(augmentation: Augmentation, batch: Batch) -> tuple[Augment, Tensor]:
    """The function that augments a batch, and the inputs of the batch."""
    augment = augmentation.build(batch.scale, "cpu")
    if augment is None:
        raise NotApplicable("with these parameters it changes nothing")
    return augment, batch.inputs


def _runs(augmentation: Augmentation, batch: Batch, seed: int = 0) -> Outcome:
    if error := augmentation.validation_error(batch.shape):
        return Failure("it takes such inputs", error)
    augment = augmentation.build(batch.scale, "cpu")
    return None if augment is None else output_error(augment, batch.inputs, seed)


def _shape(augment: Augment, inputs: Tensor) -> Outcome:
    import torch

    if failure := shape_error(augment, inputs):
        return failure
    changed = augment(inputs, np.random.default_rng(0))
    if inputs.dim() == 4 and not changed.is_contiguous(memory_format=torch.channels_last):
        return Failure("memory format channels_last", "another one; end with .contiguous(memory_format=…)")
    return None


def _changes(augmentation: Augmentation, batch: Batch) -> Outcome:
    import torch

    if augmentation.build(batch.scale, "cpu") is None:
        return Note("with these parameters it changes nothing")
    augment, inputs = _built(augmentation, batch)
    for seed in range(SEEDS):
        if not torch.equal(augment(batch.inputs, np.random.default_rng(seed)), inputs):
            return None
    return Failure(f"changed inputs for one of {SEEDS} seeds", "the same inputs")


def _finite(augment: Augment, inputs: Tensor) -> Outcome:
    import torch

    changed = augment(inputs, np.random.default_rng(0))
    return None if torch.isfinite(changed).all() else Failure("finite numbers", "nan or infinite ones")
