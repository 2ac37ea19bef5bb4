"""What a model is: an ordered list of named blocks, so that cutting it is slicing a list."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.registry import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

    Blocks = Iterator[tuple[str, nn.Module]]


class Model(Component):
    """A classifier whose last block gives log-probabilities."""

    def misfit(self, shape: tuple[int, int, int]) -> str | None:
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

    @abstractmethod
    def blocks(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Blocks:
        """Fresh blocks in the order in which data passes them; chained they are the model.

        Each is built when it is asked for: who holds a part of the model never has the others in memory.
        shape: of one sample, (channels, height, width). Input (batch, *shape) float32, output
        (batch, classes) log-probabilities. generator: what dropout draws from. Initial weights come
        from torch's global generator, which the caller seeds. The shape must fit, see `misfit`.
        """
