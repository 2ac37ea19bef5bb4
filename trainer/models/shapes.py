"""Shapes of activations between the blocks of a model, without memory for weights or samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.models.base import Model


def input_shapes(model: Model, shape: Sequence[int], classes: int) -> list[tuple[int, ...]]:
    """Return the input shape of every block in forward order, without the batch dimension.

    Blocks are built on torch's `meta` device, where tensors have shapes and no data. No random generator
    is advanced.

    Args:
        model: accepts images of `shape`, see `Model.validation_error`.
        shape: of one sample, (channels, height, width).
        classes: number of classes.
    """
    import torch

    shapes: list[tuple[int, ...]] = []
    with torch.device("meta"), torch.no_grad():
        x = torch.empty(1, *shape)
        for _, block in model.blocks(tuple(shape), classes, torch.Generator("cpu")):
            shapes.append(tuple(x.shape[1:]))
            x = block.eval()(x)
    return shapes
