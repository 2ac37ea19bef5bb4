"""Shapes of activations between the blocks of a model, without memory for weights or samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trainer.data.base import Dataset
    from trainer.models.base import Model


def input_type(dataset: Dataset) -> torch.dtype:
    """The type of the numbers that the first block takes."""
    import torch

    kind: torch.dtype = getattr(torch, dataset.input_type)
    return kind


def noise(dataset: Dataset, size: int, generator: torch.Generator) -> torch.Tensor:
    """Inputs in the shape of a dataset's, without meaning: normally distributed, or any tokens."""
    import torch

    shape, kind = (size, *dataset.shape), input_type(dataset)
    if dataset.target_shape and not kind.is_floating_point:
        return torch.randint(dataset.outputs, shape, generator=generator, dtype=kind)
    return torch.randn(shape, generator=generator).to(kind)


def block_shapes(model: Model, dataset: Dataset) -> list[tuple[int, ...]]:
    """Return the input shape of every block in forward order, and the shape of the model's output.

    Shapes are those of one sample.

    Blocks are built on torch's `meta` device, where tensors have shapes and no data. No random generator
    is advanced.

    Args:
        model: accepts inputs of the dataset's shape, see `Model.validation_error`.
        dataset: whose samples the model takes.
    """
    import torch

    shapes: list[tuple[int, ...]] = []
    with torch.device("meta"), torch.no_grad():
        x = torch.empty(1, *dataset.shape, dtype=input_type(dataset))
        for _, block in model.blocks(dataset.shape, dataset.outputs, torch.Generator("cpu")):
            shapes.append(tuple(x.shape[1:]))
            x = block.eval()(x)
    return [*shapes, tuple(x.shape[1:])]
