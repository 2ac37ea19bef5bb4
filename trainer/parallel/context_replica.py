"""Context-parallel replica: the whole model on a part of the tokens, and exchanges that gradients pass.

The forward and backward passes of ring attention are in trainer/strategies/context_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.dropout import Dropout
from trainer.models.layers.transformer import Attention, TokenEmbedding
from trainer.training.loader import Batch
from trainer.training.replica import Replica
from trainer.training.task import Task

Attend = Callable[[Tensor, Tensor, Tensor, Communicator], Tensor]
ForwardPass = Callable[[Tensor, Tensor, Tensor, Communicator], tuple[Tensor, Tensor]]
BackwardPass = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Communicator], tuple[Tensor, Tensor]]


class ContextParallelReplica(Replica):
    """A rank's copy of the model, which sees consecutive tokens of each sample.

    Copies stay equal: they start from equal weights, and the all-reduce makes their gradients bitwise
    equal.
    """

    def __init__(self, task: Task, clock: Clock, comm: Communicator, attend: Attend) -> None:
        # Replica 0 on all ranks: dropout must draw the masks of serial training.
        super().__init__(task.build_model(0, device=comm.device), task, clock)
        self._comm = comm
        self._tokens = task.spec.dataset.shape[0] // comm.size
        self._first = comm.rank * self._tokens
        self._accuracy = 0.0
        if comm.size == 1:
            return
        for module in [*self.model.modules()]:
            if isinstance(module, Attention):
                module.first = self._first
                module.mix = lambda query, key, value: attend(query, key, value, comm)
            elif isinstance(module, TokenEmbedding):
                module.first = self._first
            for name, child in module.named_children():
                if isinstance(child, Dropout):
                    setattr(module, name, TokenDropout(child, self._first, comm.size))

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """As `Replica.backward`, of the whole batch: the sum of the ranks' gradients."""
        own = slice(self._first, self._first + self._tokens)
        part = replace(batch, inputs=batch.inputs[:, own], targets=batch.targets[:, own])
        super().backward(part, weight / self._comm.size)
        if self._comm.size == 1 or not weight or self.loss is None:
            return
        facts = torch.stack([self.loss, self.loss.new_tensor(super().batch_accuracy)]) / self._comm.size
        sums = torch.cat([self.gradient(), facts])
        self._comm.all_reduce(sums, "sum")
        self.set_gradient(sums[:-2])
        self.loss, self._accuracy = sums[-2], sums[-1].item()

    @property
    def batch_accuracy(self) -> float:
        """Accuracy on all tokens of the last batch, 0 … 1."""
        return self._accuracy if self._comm.size > 1 else super().batch_accuracy

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Log-probabilities for all tokens, on rank 0 only. Every rank calls it."""
        if self._comm.size == 1:
            return super().predict(inputs)
        output: Tensor = self.model(inputs[:, self._first : self._first + self._tokens])
        parts = self._comm.gather(output.contiguous().flatten(), root=0)
        return None if parts is None else torch.cat([part.view_as(output) for part in parts], dim=-1)


class TokenDropout(Dropout):
    """Dropout of some tokens: it draws the mask of all tokens, as serial training does."""

    def __init__(self, full: Dropout, first: int, parts: int) -> None:
        super().__init__(full.probability, full.generator)
        self._first, self._parts = first, parts

    def mask(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        full = super().mask(x.new_empty(batch, tokens * self._parts, width))
        return full[:, self._first : self._first + tokens]


class RingAttention(torch.autograd.Function):
    """Attention whose keys and values travel around the ring of ranks, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        comm: Communicator,
        forward_pass: ForwardPass,
        backward_pass: BackwardPass,
    ) -> Tensor:
        mixed, total = forward_pass(query, key, value, comm)
        ctx.comm, ctx.backward_pass = comm, backward_pass
        ctx.save_for_backward(query, key, value, mixed, total)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, total = ctx.saved_tensors
        block = torch.stack([key, value])
        of_query, (of_key, of_value) = ctx.backward_pass(gradient, query, block, mixed, total, ctx.comm)
        return of_query, of_key, of_value, None, None, None


def heads_to_tokens(x: Tensor, comm: Communicator) -> Tensor:
    """All heads of this rank's tokens, (batch, heads, tokens, …), to all tokens of this rank's heads."""
    by_heads = x.unflatten(1, (comm.size, -1)).movedim(1, 0)  # (ranks, batch, heads of a rank, tokens, …)
    return _exchange(by_heads, comm).movedim(0, 2).flatten(2, 3)


def tokens_to_heads(x: Tensor, comm: Communicator) -> Tensor:
    """The inverse of `heads_to_tokens`."""
    by_tokens = x.unflatten(2, (comm.size, -1)).movedim(2, 0)  # (ranks, batch, heads of a rank, tokens, …)
    return _exchange(by_tokens, comm).movedim(0, 1).flatten(1, 2)


def _exchange(x: Tensor, comm: Communicator) -> Tensor:
    y: Tensor = _AllToAll.apply(x, comm)  # type: ignore[no-untyped-call]
    return y


class _AllToAll(torch.autograd.Function):
    """Row i goes to rank i. The gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return _all_to_all(x, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradient, ctx.comm), None


def _all_to_all(x: Tensor, comm: Communicator) -> Tensor:
    return comm.all_to_all(x.contiguous().flatten(1)).view(x.shape)
