"""Base classes of datasets and partitioners, and the types of images, labels and sample indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainer.core.registry import Component
from trainer.core.user_code import MAX_NAME
from trainer.data.split_rules import broken_rules

Images = npt.NDArray[np.float32]
Array = npt.NDArray[Any]  # of any type and shape; the first dimension counts samples
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Scaling = Literal["standardise", "unit"]

MOST_CLASSES = 1000  # an event has room for them
# What a dataset may state. A file is below the data directory, and no part of its path is hidden.
Shape = Annotated[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Field(max_length=32)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
DataFile = Annotated[Name, Field(pattern=r"^\w[\w .+-]*(/\w[\w .+-]*)*$")]


class DataError(Exception):
    """Data cannot be obtained, read or partitioned. The message states the cause and a fix."""


def image_error(shape: tuple[int, ...]) -> str | None:
    """Return an error message if inputs of this shape are not images (channels, height, width)."""
    if len(shape) == 3:
        return None
    return f"inputs must be images of shape (channels, height, width), not of shape {shape}"


@dataclass(frozen=True)
class Split:
    """The training or the test split, in memory.

    inputs: the inputs of the model, shape (samples, *shape). Images are float32, shape (samples, channels,
    height, width), and scaled: with `standardise` they have zero mean and unit variance over the training
    split, with `unit` pixels of 0 … 1. labels: the class of each sample, by which partitioners group;
    int64, shape (samples,), in 0 … classes - 1; 0 where samples have no classes. other_targets: what the
    loss compares the outputs with, shape (samples, …); None: the labels.
    """

    inputs: Array
    labels: Labels
    other_targets: Array | None = None

    @property
    def targets(self) -> Array:
        """What the loss compares the model's outputs with, shape (samples, …)."""
        return self.labels if self.other_targets is None else self.other_targets

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(
            array.nbytes for array in (self.inputs, self.labels, self.other_targets) if array is not None
        )


@dataclass(frozen=True)
class PixelScale:
    """Converts scaled images back to pixels: images × deviation + mean.

    A pixel of 0 is the darkest of the training split, a pixel of 1 the brightest. Both arrays: float32,
    shape (channels, 1, 1).
    """

    mean: Images
    deviation: Images


@dataclass(frozen=True)
class Data:
    """A loaded dataset: both splits, scaled alike.

    scale: the scale of images; None for other inputs. digest: 16 hex digits that identify the samples where
    machines can have different ones; None where all have the same.
    """

    train: Split
    test: Split
    classes: int
    scale: PixelScale | None
    digest: str | None = None


class Dataset(Component):
    """A source of samples. Its sizes are known without reading files, so that a spec can be checked.

    Attributes:
        accuracy_is: what the accuracy is where it is not the share of samples of the right class; or None.
    """

    accuracy_is: ClassVar[Name | None] = None

    @property
    @abstractmethod
    def train_samples(self) -> Annotated[int, Field(ge=1, le=2**40)]:
        """Samples in the training split."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Shape of one input; of an image, (channels, height, width)."""

    @property
    def input_type(self) -> Name:
        """Type of the inputs' numbers, by numpy's name."""
        return "float32"

    @property
    @abstractmethod
    def class_count(self) -> Annotated[int, Field(ge=1, le=MOST_CLASSES)]:
        """Number of classes; 1 where samples have none."""

    @property
    def outputs(self) -> Annotated[int, Field(ge=1, le=2**20)]:
        """Scores that a model returns for a target: one for each class, or for each token."""
        return self.class_count

    @property
    def target_shape(self) -> Shape:
        """Shape of the targets of one sample; () for its class."""
        return ()

    @property
    def best_loss(self) -> Annotated[float, Field(allow_inf_nan=False)] | None:
        """The smallest mean loss that a model can expect, in nats per target; None if it is not known."""
        return None

    @property
    def files(self) -> Annotated[tuple[DataFile, ...], Field(max_length=1000)]:
        """The files that it reads, as paths in the data directory; empty if it needs no download."""
        return ()

    def prepare(self, data_dir: Path) -> None:
        """Download missing files to `data_dir`. Safe to call from several processes.

        Called once per sweep, before any node starts. Raises DataError.
        """

    @abstractmethod
    def load(self, data_dir: Path) -> Data:
        """Read both splits. Writes and downloads nothing. Raises DataError."""


class ScaledDataset(Dataset):
    """A dataset of images or other measurements, whose numbers are scaled."""

    scaling: Scaling = Field(
        "standardise",
        description="of pixels: each channel to mean 0 and variance 1 over the training split, or all "
        "pixels from the darkest, 0, to the brightest, 1",
    )


class Partitioner(Component):
    """Assigns training samples to nodes."""

    disjoint: ClassVar[bool] = False  # no sample is in two partitions
    covers: ClassVar[bool] = False  # every sample is in a partition
    random: ClassVar[bool] = True  # depends on the seed
    random_parts: ClassVar[bool] = False  # a partition is a random sample of the training set
    transforms_images: ClassVar[bool] = False  # overrides `transform_images`
    needs_classes: ClassVar[bool] = False  # assigns samples by their class
    even_parts: ClassVar[bool] = (
        False  # splits all samples into parts of equal size (±1), larger ones first
    )

    reshuffle: bool = Field(False, description="split again in every epoch instead of once per run")

    def validation_error(self, samples: int, classes: int, parts: int) -> str | None:
        """Return why a training set of this size and these classes cannot be partitioned; or None.

        The reason says what to change. Checks only the numbers, because labels have not been read yet.
        """
        if parts > samples:
            return f"{samples} samples cannot fill {parts} parts; use fewer nodes"
        if self.reshuffle and not self.random:
            return "the split is the same in every epoch, so reshuffle must be false"
        return None

    def check(self, labels: Labels, parts: int) -> None:
        """Raise DataError if `validation_error` finds that these labels cannot be partitioned."""
        if reason := self.validation_error(len(labels), len(np.unique(labels)), parts):
            raise DataError(reason)

    @abstractmethod
    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        """Partition the training set among `parts` replicas.

        Depends only on the arguments: ranks that pass equally seeded generators get the same result.
        Does not repeat or drop samples to make partitions equal in size.

        Args:
            labels: int64, shape (samples,).

        Returns:
            The sample indices of each partition.

        Raises:
            DataError: A partition would be empty.
        """

    def split_error(self, split: Sequence[Indices], samples: int, parts: int) -> str | None:
        """Return how a result of `partition` breaks a rule or what the class declares; or None.

        Args:
            split: what `partition` returned.
            samples: the number of samples in the training set.
            parts: the number of partitions that were asked for.
        """
        broken = next(broken_rules(split, samples, parts, self.disjoint, self.covers), None)
        return str(broken) if broken else None

    def transform_images(self, images: Images, rank: int, parts: int, rng: np.random.Generator) -> Images:
        """Return the images of one partition as its rank trains on them. Test images never change.

        The first partition stays unchanged, so that a single node trains on the images of `serial`.

        Args:
            images: float32, shape (samples, channels, height, width). Not modified.

        Returns:
            Images of the same shape, in the same order.
        """
        return images
