"""Vectors that share memory until one of them changes: torch's copy-on-write storages."""

from __future__ import annotations

from torch import Tensor, _lazy_clone
from torch._C import _data_address, _is_cow_tensor  # type: ignore[attr-defined]


def shared_copy(tensor: Tensor) -> Tensor:
    """A copy that takes memory only when it, or the tensor, changes in place."""
    return _lazy_clone(tensor)


def is_shared(tensor: Tensor) -> bool:
    """Whether a tensor is a shared copy, or has been copied so, and has not changed since."""
    return bool(_is_cow_tensor(tensor))


def have_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two vectors are shared copies of each other that have not changed."""
    return (
        is_shared(one)
        and is_shared(other)
        and one.shape == other.shape
        and _data_address(one) == _data_address(other)
    )
