"""The interface of an augmentation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from trainer.core.registry import Component
from trainer.data.base import PixelScale

if TYPE_CHECKING:
    from torch import Tensor

    # Returns the augmented batch: same shape and memory format. Does not change its argument. All
    # randomness comes from the generator.
    Augment = Callable[[Tensor, np.random.Generator], Tensor]
else:
    Augment = Callable


class Augmentation(Component):
    """Random changes of the images of training batches. Test images never change."""

    def validation_error(self, shape: tuple[int, ...]) -> str | None:
        """Return why it cannot augment inputs of this shape; or None."""
        return None

    @abstractmethod
    def build(self, scale: PixelScale | None, device: str) -> Augment | None:
        """Return the function that augments a batch on `device`; None if nothing changes.

        Called before the clock starts. scale: the scale of images; None for other inputs.
        """
