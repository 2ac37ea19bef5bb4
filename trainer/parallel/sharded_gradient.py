"""ZeRO-2 replica: all weights, and of each block the gradient and optimizer state of a part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.parallel.exchanged import Exchange
from trainer.training.loader import Batch
from trainer.training.replica import Replica, squared_norm_of_ranks
from trainer.training.task import Task


class ShardedGradientReplica(Replica):
    """A replica whose rank updates a part of each block.

    The reduce-scatter and the all-gather are in trainer/strategies/zero2.py.
    """

    def __init__(
        self, model: nn.Sequential, task: Task, comm: Communicator, reduce: Exchange, gather: Exchange
    ) -> None:
        super().__init__(model, task, comm.clock)
        self._comm = comm
        self._blocks = [Block(parameters, comm, reduce, gather) for parameters in _by_block(model)]
        self._optimizer = task.spec.optimizer.build([block.part for block in self._blocks], task.spec.lr)

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        super().backward(batch, weight)
        with self._clock.phase("compute"):
            for block in self._blocks:
                block.reduce_rest()

    def step(self) -> None:
        """Update this rank's parts, and receive those of the other ranks."""
        super().step()
        with self._clock.phase("compute"):
            for block in self._blocks:
                block.gather_weights()

    def squared_gradient_norm(self) -> Tensor:
        return squared_norm_of_ranks(self._state_tensors()["gradient"], self._comm)

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        state = super()._state_tensors()
        parts = [block.part.grad for block in self._blocks if block.part.grad is not None]
        return {**state, "gradient": state["gradient"] + parts}


class Block:
    """The parameters of a block in one flat tensor, of which this rank updates a part.

    Attributes:
        part: the weights that this rank updates, shape (n / ranks,), a view of the flat tensor.
    """

    def __init__(
        self, parameters: list[nn.Parameter], comm: Communicator, reduce: Exchange, gather: Exchange
    ) -> None:
        self._parameters, self._comm = parameters, comm
        self._reduce, self._gather = reduce, gather
        length = -(-sum(each.numel() for each in parameters) // comm.size)
        self._weights = parameters[0].data.new_zeros(comm.size * length)
        for view, parameter in zip(self._views(self._weights), parameters, strict=True):
            view.copy_(parameter.data)
            parameter.data = view
            parameter.register_post_accumulate_grad_hook(self._has_gradient)
        self.part = self._weights[comm.rank * length :][:length]
        self._missing = {*parameters}

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        """Each parameter's values in `flat`, with its memory format."""
        start = 0
        for each in self._parameters:
            yield flat.as_strided(each.shape, each.stride(), start)
            start += each.numel()

    def _has_gradient(self, parameter: Tensor) -> None:
        self._missing.discard(parameter)
        if not self._missing:
            self._reduce_gradients()

    def reduce_rest(self) -> None:
        """Reduce gradients of a block in which some parameters are not part of the loss."""
        if any(each.grad is not None for each in self._parameters):
            self._reduce_gradients()

    def _reduce_gradients(self) -> None:
        """Add the mean gradient of this rank's part to those of the step, and free all others."""
        gradient = torch.zeros_like(self._weights)
        for view, parameter in zip(self._views(gradient), self._parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                parameter.grad = None
        reduced = self._reduce(gradient, self._comm)
        self.part.grad = reduced if self.part.grad is None else self.part.grad + reduced
        self._missing = {*self._parameters}

    @torch.no_grad()
    def gather_weights(self) -> None:
        """Replace the weights by the parts that the ranks have updated."""
        self._weights.copy_(self._gather(self.part, self._comm))


def _by_block(model: nn.Sequential) -> Iterator[list[nn.Parameter]]:
    """The parameters of each block that has any. A weight that blocks share is the first one's."""
    seen: set[nn.Parameter] = set()
    for block in model:
        if own := [each for each in block.parameters() if each not in seen]:
            seen.update(own)
            yield own
