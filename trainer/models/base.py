"""Base class of models: a model is a chain of named blocks, so that it can be split between any two."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from pydantic import Field

from trainer.core.registry import Component
from trainer.core.user_code import MAX_NAME
from trainer.data.base import image_error

if TYPE_CHECKING:
    import torch
    from torch import nn

    Blocks = Iterator[tuple[str, nn.Module]]

Name = Annotated[str, Field(max_length=MAX_NAME)]
Names = Annotated[Sequence[Name], Field(max_length=100_000)]


class ParallelPair(NamedTuple):
    """Two weight layers that tensor parallelism shards together: one by columns, the next by rows.

    Only elementwise functions, pooling, flattening, dropout and normalisation lie between them. All of
    these treat channels or features independently, so no communication is needed between the two layers.
    """

    column: str  # path of the column-parallel layer: "fc1", "block1.conv1"
    row: str  # path of the row-parallel layer
    units: int  # largest number of shards: channels, features, or groups that are normalised together


def image_size_error(shape: tuple[int, ...], min_pixels: int) -> str | None:
    """Return an error message if an image (channels, height, width) has a side below `min_pixels`."""
    if error := image_error(shape):
        return error
    _, height, width = shape
    if min(height, width) >= min_pixels:
        return None
    return f"images must have at least {min_pixels}×{min_pixels} pixels, not {height}×{width}"


def exact_image_size_error(shape: tuple[int, ...], pixels: int) -> str | None:
    """Return an error message if an image (channels, height, width) is not `pixels` × `pixels`."""
    if error := image_error(shape):
        return error
    _, height, width = shape
    if (height, width) == (pixels, pixels):
        return None
    return f"images must have {pixels}×{pixels} pixels, not {height}×{width}"


def several_types(model: Model) -> str | None:
    """Return why a strategy that flattens parameters of one type cannot train this model, or None."""
    if len(model.types) == 1:
        return None
    of_types = " and ".join(f"{name} of type {kind}" for kind, name in model.types.items())
    return f"it flattens parameters of one type, and the model has {of_types}"


def sharded_rows_error(model: Model) -> str | None:
    """Return why a strategy that shards rows, block by block, cannot train this model, or None."""
    if model.shared_weights:
        return f"it shards block by block, and {model.shared_weights}"
    if model.scalar:
        return f"it shards rows, and {model.scalar} has no dimensions; give it the shape (1,)"
    return several_types(model)


class Model(Component):
    """A network. The last block of a registered one returns log-probabilities of the classes.

    Attributes:
        takes_tokens: whether its inputs are tokens, int64, and its outputs have shape (batch, tokens of the
            vocabulary, tokens of a sample).
        has_attention: whether `recompute: selective` finds an Attention in it.
        channels_last: whether images and the weights of convolutions are in this memory format of torch.
        fixed_weights: whether the initial weights are the same for every seed, as pretrained ones are.
    """

    takes_tokens: ClassVar[bool] = False
    has_attention: ClassVar[bool] = False
    channels_last: ClassVar[bool] = False
    fixed_weights: ClassVar[bool] = False

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        """Return why the model cannot take inputs of this shape, (channels, height, width) of images."""
        return None

    @property
    @abstractmethod
    def names(self) -> Annotated[list[Name], Field(min_length=1, max_length=10_000)]:
        """Names of the blocks in forward order, as `blocks` yields them. Builds no block."""

    def shallow(self) -> Self:
        """The model with fewer blocks, where many are alike: all left out are like the last but one."""
        return self

    @property
    def indivisible(self) -> str | None:
        """Why the model cannot be split into its blocks; or None."""
        return self.shared_weights

    @property
    def shared_weights(self) -> str | None:
        """Which blocks have the same weights, as a clause; or None."""
        return None

    @property
    def classifier(self) -> str | None:
        """First block of the fully connected classifier; None if the model has no other part."""
        return None

    @property
    def has_synchronous_layers(self) -> bool:
        """Whether layers communicate across ranks in every batch, as SyncBatchNorm does."""
        return False

    @property
    def batch_statistics(self) -> bool:
        """Whether training on a sample depends on the other samples of the batch, as with BatchNorm."""
        return False

    @property
    def draws(self) -> bool:
        """Whether its forward pass draws from torch's global generator, as nn.Dropout does.

        Each block of a user's model then draws from a stream of its rank; a registered one has its own.
        """
        return False

    @property
    def fewest_samples(self) -> Annotated[int, Field(ge=1, le=2)]:
        """How many samples a forward pass in training needs: 2 with BatchNorm of single values."""
        return 1

    @property
    def statistics(self) -> Names | None:
        """Names of the floating-point buffers that training changes, `block.buffer`; None: all.

        Ranks average these. Others, such as a mask, stay as they are.
        """
        return None

    @property
    def weights(self) -> Annotated[int, Field(ge=0, le=2**50)]:
        """The number of trained weights, as far as it is known without building the model; else 0."""
        return 0

    @property
    def unused(self) -> Names:
        """Names of the parameters that are trained and get no gradient, `block.parameter`."""
        return ()

    @property
    def conditional(self) -> Name | None:
        """The name of a parameter that gets a gradient from some samples alone; or None."""
        return None

    @property
    def scalar(self) -> Name | None:
        """The name of a parameter without dimensions, which has no rows to shard; or None."""
        return None

    @property
    def hidden_matrices(self) -> bool:
        """Whether weights of two dimensions are in other layers than embeddings, the first and the last."""
        return True

    @property
    def types(self) -> Annotated[Mapping[Name, Name], Field(max_length=100)]:
        """A trained parameter of each type that there is, by the type, such as float64."""
        return {"float32": ""}

    @property
    def per_batch(self) -> str:
        """What its `batch_statistics` are, as the first words of "… over the batch"."""
        return "BatchNorm normalises"

    @property
    def tensor_parallel_pairs(self) -> list[ParallelPair]:
        """Pairs of layers to shard in tensor parallelism, in forward order. No layer is in two pairs."""
        return []

    @abstractmethod
    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        """Yield freshly initialised blocks in forward order. Chained, they are the model.

        Every block is built when the iterator reaches it, so a rank that keeps only some of the blocks
        never holds the whole model in memory. Initial weights come from torch's global generator, which
        the caller seeds.

        Args:
            shape: the shape of one input; `validation_error` must return None for it. The model takes
                tensors of shape (batch, *shape), float32 unless the dataset has another `input_type`.
            classes: number of classes; the model returns log-probabilities of shape (batch, classes).
            generator: random generator of the dropout layers.
        """
