"""What a model is: an ordered list of named blocks, so that cutting it is slicing a list."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from trainer.core.registry import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

    Blocks = Iterator[tuple[str, nn.Module]]


class Pair(NamedTuple):
    """Two layers of weights between which every channel or feature goes its own way.

    Only what is elementwise, pooling, flattening, dropout and normalisation lie there; so ranks that share
    out the first one's outputs and the second one's inputs alike need nothing of each other in between.
    """

    first: str  # with the block that it is in: "fc1", "block1.conv1"
    second: str
    width: int  # into so many shares it can go: channels, features, or groups that are normalised together


def too_small(shape: tuple[int, int, int], least: int) -> str | None:
    """Why images of this shape are too small for a model that takes so many pixels a side, or None."""
    _, height, width = shape
    if min(height, width) >= least:
        return None
    return f"it takes {least}×{least} pixels and more, not {height}×{width}"


class Model(Component):
    """A classifier whose last block gives log-probabilities."""

    def validation_error(self, shape: tuple[int, int, int]) -> str | None:
        """Why images of this shape (channels, height, width) do not fit, or None."""
        return None

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The blocks' names in order: those that `blocks` gives, known without building any."""

    @property
    def head(self) -> str | None:
        """The block with which the fully connected part begins; None where nothing comes before it."""
        return None

    @property
    def meets(self) -> bool:
        """Whether blocks meet those of other ranks in every batch, so that all go through it together."""
        return False

    @property
    def batch_statistics(self) -> bool:
        """Whether what it computes of a sample depends on which others are in the batch."""
        return False

    @property
    def pairs(self) -> list[Pair]:
        """Layers that can be shared out two by two, in the order in which data passes them; none twice."""
        return []

    @abstractmethod
    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        """Fresh blocks in the order in which data passes them; chained they are the model.

        Each is built when it is asked for: who holds a part of the model never has the others in memory.
        shape: of one sample, (channels, height, width). Input (batch, *shape) float32, output
        (batch, classes) log-probabilities. generator: what dropout draws from. Initial weights come
        from torch's global generator, which the caller seeds. The shape must fit, see `misfit`.
        """
