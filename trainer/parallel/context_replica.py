"""Context-parallel replica: the whole model on a part of the tokens, and exchanges that gradients pass.

The forward and backward passes of ring attention are in trainer/strategies/context_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.transformer import Attention
from trainer.parallel.exchanged import all_to_all
from trainer.parallel.token_part import TokenPart
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
        """The ranks of `comm` are two or more."""
        # Replica 0 on all ranks: dropout must draw the masks of serial training.
        super().__init__(task.build_model(0, device=comm.device), task, clock)
        self._part = TokenPart(comm, task.spec.dataset.shape[0])
        self._part.adapt(self.model)
        self._parts, self._accuracy = comm.size, 0.0
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.first = self._part.first
                module.mix = lambda query, key, value: attend(query, key, value, comm)

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """As `Replica.backward`, of the whole batch: the sum of the ranks' gradients."""
        super().backward(self._part.of_batch(batch), weight / self._parts)
        if self.loss is not None:
            self.loss, self._accuracy = self._part.sum(self._parameters, self.loss, super().batch_accuracy)

    @property
    def batch_accuracy(self) -> float:
        """Accuracy on all tokens of the last batch, 0 … 1."""
        return self._accuracy

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Log-probabilities for all tokens, on rank 0 only. Every rank calls it."""
        output: Tensor = self.model(self._part.of(inputs))
        return self._part.gather(output)


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
    return all_to_all(by_heads, comm).movedim(0, 2).flatten(2, 3)


def tokens_to_heads(x: Tensor, comm: Communicator) -> Tensor:
    """The inverse of `heads_to_tokens`."""
    by_tokens = x.unflatten(2, (comm.size, -1)).movedim(2, 0)  # (ranks, batch, heads of a rank, tokens, …)
    return all_to_all(by_tokens, comm).movedim(0, 1).flatten(1, 2)
