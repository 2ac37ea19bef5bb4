"""Activations: the memory that the forward pass keeps for the backward pass."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter


class Activations:
    """Counts, within a `with` block, the bytes that autograd keeps, and the most at any one time.

    Each memory counts once, however many tensors are views of it; parameters do not count. What was kept
    before the block began is not seen. Nothing is copied or changed.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self._now = 0
        self._kept: Counter[int] = Counter()  # how often each memory is kept, by its address
        self._hooks = saved_tensors_hooks(lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor)

    def __enter__(self) -> Activations:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _take(self, address: int, size: int) -> None:
        self._kept[address] += 1
        if self._kept[address] == 1:
            self._now += size
            self.most_bytes = max(self.most_bytes, self._now)

    def _leave(self, address: int, size: int) -> None:
        self._kept[address] -= 1
        if self._kept[address] == 0:
            self._now -= size


class _Kept:
    """A tensor that autograd keeps; it lets go of this when it has no more need of it."""

    def __init__(self, tensor: Tensor, activations: Activations) -> None:
        self.tensor = tensor
        self._activations = activations
        source = tensor if tensor._base is None else tensor._base
        self._counts = not isinstance(source, Parameter)
        if self._counts:
            storage = tensor.untyped_storage()
            self._memory = storage.data_ptr(), storage.nbytes()
            activations._take(*self._memory)

    def __del__(self) -> None:
        if self._counts:
            self._activations._leave(*self._memory)
