"""The shapes that pass from block to block, found without any memory for weights or samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.models.base import Model


def input_shapes(model: Model, shape: Sequence[int], classes: int) -> list[tuple[int, ...]]:
    """Of each block, in order: the shape of what comes in, per sample.

    shape: of one sample, (channels, height, width); it must fit, see `Model.misfit`. Blocks are built on
    torch's device `meta`, where tensors have shapes and no numbers: nothing is drawn from any generator.
    """
    import torch

    shapes: list[tuple[int, ...]] = []
    with torch.device("meta"), torch.no_grad():
        x = torch.empty(1, *shape)
        for _, block in model.blocks(tuple(shape), classes, torch.Generator("cpu")):
            shapes.append(tuple(x.shape[1:]))
            x = block.eval()(x)
    return shapes
