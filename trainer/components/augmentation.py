"""Augmentations: a subclass of Augmentation, or a function of inputs and a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Interval
from pydantic import Field

from trainer.components.facts import Imported, Source
from trainer.components.kind import Input, Kind, NotApplicable, Note, Verdict, counted, law
from trainer.components.parameters import bound
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.components.samples import taken
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure
from trainer.data.augmentations.base import Augment, Augmentation
from trainer.data.base import PixelScale

if TYPE_CHECKING:
    from torch import Tensor

TAKEN = 16  # seeds with which an augmentation must take inputs, also if it changes few batches
SEEDS = 64  # one of which changes inputs, also if an augmentation changes few batches
SHAPES = ((3, 8, 8), (1, 8, 8), (3, 32, 32), (1, 28, 28), (8,))


class FunctionAugmentation(Augmentation):
    """A function of inputs and a generator as an augmentation."""

    function: Any

    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        return self.function  # type: ignore[no-any-return]


class Batch(Input):
    """A batch of inputs of a shape: noise, or those of a dataset."""

    shape: tuple[int, ...] = Field(max_length=32)
    samples: Annotated[int, Interval(ge=1, le=64)]

    def __str__(self) -> str:
        return f"{counted(self.samples, 'input')} of shape {'×'.join(map(str, self.shape))}, seed 0"


class AugmentationKind(Kind[Augmentation]):
    """An augmentation that is tried."""

    name = "augmentation"
    base = Augmentation
    arguments = ("inputs", "rng")
    datasets = ()

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Augmentation:
        return FunctionAugmentation(function=bound(called, parameters, ("inputs", "rng")))

    @property
    def inputs(self) -> Sequence[Batch]:
        if self.on.few is not None and self.on.loading:
            return [Batch(shape=tuple(self.on.few.inputs.shape[1:]), samples=len(self.on.few.inputs))]
        return [Batch(shape=shape, samples=samples) for shape in self.shapes for samples in (1, 5)]

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shape of the dataset's inputs; without a dataset, those that it takes."""
        if self.on.dataset is not None:
            return [self.on.dataset.shape]
        return [each for each in SHAPES if self.takes(each)] or SHAPES[:1]

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether it augments inputs of a shape, also where chance decides."""
        batch = Batch(shape=shape, samples=2)
        try:
            return all(self._error(batch, seed) is None for seed in range(TAKEN))
        except Exception:  # it does not take inputs of this shape
            return False

    def fits(self) -> None:
        if not self.takes(self.shapes[0]):
            raise ImportFailure("it does not augment them")

    def batch(self, batch: Batch) -> Tensor:
        """The inputs in memory of their own, channels_last for images, as in training. Noise is float32."""
        import torch

        if self.on.few is None:
            found = torch.randn(batch.samples, *batch.shape, generator=torch.Generator().manual_seed(1))
        else:
            found = self.on.few.inputs[taken(len(self.on.few.inputs), batch.samples)].clone()
        return found.contiguous(memory_format=torch.channels_last) if found.dim() == 4 else found

    def built(self, batch: Batch) -> Augment:
        """The function that augments a batch. Raises NotApplicable if there is none."""
        augment = self.own.build(_scale(batch.shape, self.on.loading), "cpu")
        if augment is None:
            raise NotApplicable("with these parameters it changes nothing")
        return augment

    def _augmented(self, batch: Batch, seed: int = 0) -> Tensor:
        return self.built(batch)(self.batch(batch), np.random.default_rng(seed))

    @law("it augments a batch", essential=True, at_loading=True)
    def runs(self, batch: Batch) -> Verdict:
        return self._error(batch)

    def _error(self, batch: Batch, seed: int = 0) -> Failure | None:
        import torch

        if error := self.own.validation_error(batch.shape):
            return Failure("it takes such inputs", error)
        try:
            output: Any = self._augmented(batch, seed)
        except NotApplicable:
            return None
        if isinstance(output, torch.Tensor):
            return None
        return Failure("a tensor", f"an output of type {type(output).__name__}")

    @law("it leaves its argument unchanged", at_loading=True)
    def argument(self, batch: Batch) -> Verdict:
        given, before = self.batch(batch), self.batch(batch)
        self.built(batch)(given, np.random.default_rng(0))
        if count := int((given != before).sum()):
            changed = f"{count} of {given.numel()} numbers of its argument changed"
            return Failure("its argument as before, and new inputs", changed)
        return None

    @law("shape, type and memory format stay", at_loading=True)
    def shape(self, batch: Batch) -> Verdict:
        import torch

        output, inputs = self._augmented(batch), self.batch(batch)
        found, expected = (
            f"inputs of shape {tuple(each.shape)} and type {each.dtype}" for each in (output, inputs)
        )
        if found != expected:
            return Failure(expected, found)
        if self.on.loading or inputs.dim() != 4:
            return None
        if output.is_contiguous(memory_format=torch.channels_last):
            return None
        return Failure("memory format channels_last", "another one; end with .contiguous(memory_format=…)")

    @law("equal generators give equal inputs", at_loading=True)
    def seeded(self, batch: Batch) -> Verdict:
        import torch

        scatter_seeds(1)
        return repetition_error(
            self._augmented(batch),
            lambda: self._augmented(batch),
            lambda *both: "" if torch.equal(*both) else "inputs",
            "draw from `rng` only",
        )

    @law("it changes inputs", lambda self: [Batch(shape=self.shapes[0], samples=64)])
    def changes(self, batch: Batch) -> Verdict:
        import torch

        inputs = self.batch(batch)
        try:
            if any(not torch.equal(self._augmented(batch, seed), inputs) for seed in range(SEEDS)):
                return None
        except NotApplicable as nothing:
            return Note(str(nothing))
        return Failure(f"changed inputs for one of {SEEDS} seeds", "the same inputs")

    @law("numbers stay finite")
    def finite(self, batch: Batch) -> Verdict:
        import torch

        return (
            None
            if torch.isfinite(self._augmented(batch)).all()
            else Failure("finite numbers", "nan or infinite ones")
        )


def _scale(shape: tuple[int, ...], loading: bool) -> PixelScale | None:
    """The scale of images whose pixels are about 0 to 1."""
    if len(shape) != 3:
        return None
    ones = np.ones((shape[0], 1, 1), np.float32)
    mean, deviation = (0.0, 1.0) if loading else (0.5, 0.25)
    return PixelScale(ones * np.float32(mean), ones * np.float32(deviation))


class ImportedAugmentation(Imported, Augmentation):
    """A user's augmentation."""

    kind = AugmentationKind

    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        return self.own.build(scale, device)  # type: ignore[no-any-return]
