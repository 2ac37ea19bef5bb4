"""Exchanges that gradients pass: one in the forward pass, and its counterpart in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.comm.base import Communicator

Exchange = Callable[[Tensor, Communicator], Tensor]


def exchanged(x: Tensor, comm: Communicator, forward: Exchange, backward: Exchange) -> Tensor:
    """The result of `forward` on x. Its gradient becomes that of x by `backward`."""
    y: Tensor = _Exchanged.apply(x, comm, forward, backward)  # type: ignore[no-untyped-call]
    return y


def all_to_all(x: Tensor, comm: Communicator) -> Tensor:
    """Send x[i] to rank i, and return what rank i sent at place i. Gradients take the same way back."""
    return exchanged(x, comm, _all_to_all, _all_to_all)


def _all_to_all(x: Tensor, comm: Communicator) -> Tensor:
    return comm.all_to_all(x.contiguous().flatten(1)).view(x.shape)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, forward: Exchange, backward: Exchange) -> Tensor:
        ctx.comm, ctx.exchange = comm, backward
        return forward(x, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.exchange(gradient, ctx.comm), None, None, None
