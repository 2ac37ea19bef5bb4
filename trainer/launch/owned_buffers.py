"""Refuses operations on the buffers of exchanges that are in flight, for runs with `debug`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.comm.base import Communicator
from trainer.comm.errors import ExchangeError
from trainer.launch import checked
from trainer.launch.position import PACKAGE, position_of

RECEIVES = ("iall_reduce", "ibroadcast", "recv")  # the buffers of these requests must not be read either
SHAPE_ALONE = ("new_", "empty_like", "zeros_like", "ones_like", "full_like", "rand")  # what these use
OWN = (str(PACKAGE / "comm"), checked.__file__)  # what may use the buffers


class OwnedBuffers(TorchDispatchMode):
    """Sees every operation of torch on this thread in a `with` block, those of backward passes included.

    An operation that writes to a buffer between the start of its exchange and `wait`, or that reads one
    that receives, is an ExchangeError with file and line of both. Views of it may be made. What numpy does
    is not seen, nor what is done to subclasses of Tensor.
    """

    def __init__(self, comm: Communicator, code: Path | None) -> None:
        """code: the directory of users' code, see `position_of`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._comm, self._code = comm, code

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        plain = all(each in (Tensor, nn.Parameter) for each in types)  # no DTensor, and no FakeTensor
        if plain and self._comm.unfinished:
            self._check(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for tensor, writes in _touched(func, args, kwargs):
            for request in self._comm.unfinished:
                buffer = request.buffer if (writes or request.kind in RECEIVES) else None
                if buffer is not None and _overlap(tensor, buffer) and not _is_own():
                    at = position_of(sys._getframe(), self._code)
                    place, rank = f"{at.file}:{at.line}" if at else "unknown code", self._comm.run_ranks
                    raise ExchangeError(
                        f"rank {rank[self._comm.rank]} {'writes to' if writes else 'reads'} the buffer of "
                        f"the {request} at {place}, before its `wait`"
                    )


def _touched(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Tensor, bool]]:
    """The tensors whose elements an operation uses, and whether it writes to them."""
    if func.overloadpacket.__name__.startswith(SHAPE_ALONE):
        return
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        alias = argument.alias_info
        if alias is None or alias.is_write:  # else the result is a view
            several = value if isinstance(value, list | tuple) else [value]
            yield from ((each, alias is not None) for each in several if isinstance(each, Tensor))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory."""
    if one.layout != torch.strided or one.device != other.device or not one.numel() or not other.numel():
        return False
    (start, end), (begins, ends) = _range(one), _range(other)
    return start < ends and begins < end


def _range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


def _is_own() -> bool:
    """Whether the communicator is what calls."""
    frame, here = sys._getframe(1), __file__
    while frame.f_back and (frame.f_code.co_filename == here or not _in_package(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OWN)


def _in_package(file: str) -> bool:
    return file.startswith(str(PACKAGE))
