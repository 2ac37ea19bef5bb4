"""What training changes in a model: parameters that are not frozen, and some buffers."""

from __future__ import annotations

from collections.abc import Container

from torch import Tensor, nn

IN_DDP = "module."  # before the names of a model that DistributedDataParallel wraps


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen. A shared one counts once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def statistics(model: nn.Module, changing: Container[str] | None) -> list[Tensor]:
    """The floating-point buffers that training changes.

    changing: their names in the chain of blocks, see `Model.statistics`; None: all.
    """
    return [
        buffer
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point()
        and (changing is None or name in changing or name.removeprefix(IN_DDP) in changing)
    ]
