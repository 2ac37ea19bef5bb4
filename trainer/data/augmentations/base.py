"""What an augmentation is: training images changed at random, batch by batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from trainer.core.registry import Component
from trainer.data.base import PixelScale

if TYPE_CHECKING:
    from torch import Tensor

    # A batch of training images as they are then trained on: same shape and memory format, the argument is
    # left as it is. What is drawn comes from the generator alone.
    Augment = Callable[[Tensor, np.random.Generator], Tensor]
else:
    Augment = Callable


class Augmentation(Component):
    """How the images of a training batch are changed at random; the test split never is."""

    def validation_error(self, shape: tuple[int, int, int]) -> str | None:
        """Why images of this shape (channels, height, width) cannot be changed so, or None."""
        return None

    @abstractmethod
    def build(self, scale: PixelScale, device: str) -> Augment | None:
        """What changes a batch on `device`; None where nothing does. Called before the clock starts."""
