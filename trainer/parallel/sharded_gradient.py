"""ZeRO-2 replica: all weights, and of each block the gradient and optimizer state of a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.comm.nonblocking import Request
from trainer.parallel.buckets import views
from trainer.training.loader import Batch
from trainer.training.replica import Moment, Replica, squares, sum_over_ranks
from trainer.training.task import Task
from trainer.training.trained import trained_parameters

# Starts an exchange of a flat tensor over the ranks.
Start = Callable[[Tensor, Communicator], Request]


class ShardedGradientReplica(Replica):
    """A replica whose rank updates a part of each block.

    The reduce-scatter and the all-gather are in trainer/strategies/zero2.py.
    """

    def __init__(
        self, model: nn.Sequential, task: Task, comm: Communicator, reduce: Start, gather: Start
    ) -> None:
        super().__init__(model, task, comm.clock)
        self._comm = comm
        self._blocks: list[Block] = []
        self._block_of: dict[nn.Parameter, Block] = {}
        self._reducing: Block | None = None  # whose gradient is on its way
        self._unused = task.spec.model.unused
        self.listen(self._has_gradient)
        # The optimizer has been built over whole tensors, by whose shapes it may group them.
        for group, parameters in self._divided(model):
            block = Block(parameters, comm, reduce, gather, self._reduces)
            self._blocks.append(block)
            self._block_of.update(dict.fromkeys(parameters, block))
            group["params"].append(block.part)

    def _divided(self, model: nn.Sequential) -> list[tuple[dict[str, Any], list[nn.Parameter]]]:
        """The trained parameters of each block by group of the optimizer and type, and the group.

        Groups lose their parameters. Those that are not part of the loss are in none.
        """
        group_of = {each: group for group in self._optimizer.param_groups for each in group["params"]}
        for group in self._optimizer.param_groups:
            group["params"] = []
        divided: dict[tuple[int, int, torch.dtype], tuple[dict[str, Any], list[nn.Parameter]]] = {}
        seen = {model.get_parameter(name) for name in self._unused}
        for each in seen:
            each.requires_grad_(False)
        for number, block in enumerate(model):
            for each in trained_parameters(block):
                if each in group_of and each not in seen:  # a shared weight is the first block's
                    group = group_of[each]
                    divided.setdefault((number, id(group), each.dtype), (group, []))[1].append(each)
                    seen.add(each)
        return [*divided.values()]

    def _reduces(self, block: Block | None) -> None:
        """A block reduces its gradient, and those before it have been reduced; None: all have been."""
        before, self._reducing = self._reducing, block
        if before:
            before.free_gradient()

    def _has_gradient(self, moment: Moment) -> None:
        parameter = self._parameters[moment.number]
        if block := self._block_of.get(parameter):
            block.has_gradient(parameter)

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        super().backward(batch, weight)
        with self._clock.phase("compute"):
            self._reduces(None)
            for block in self._blocks:
                if (missing := block.missing()) is not None:
                    names = {each: name for name, each in self.model.named_parameters()}
                    raise RuntimeError(
                        f"{names[missing]} gets a gradient in some steps only, and zero2 shards a block as "
                        "a whole; choose another strategy"
                    )

    def step(self) -> None:
        """Update this rank's parts, and receive those of the other ranks."""
        super().step()
        with self._clock.phase("compute"):
            for block, gathered in [(block, block.gather_weights()) for block in self._blocks]:
                block.set_weights(gathered.wait())

    def squared_gradient_norm(self) -> Tensor:
        return sum_over_ranks(squares(self._state_tensors()["gradient"]), self._comm)

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
        self,
        parameters: list[nn.Parameter],
        comm: Communicator,
        reduce: Start,
        gather: Start,
        reduces: Callable[[Block], None],
    ) -> None:
        """reduces: called when it has started to reduce its gradient."""
        self._parameters, self._comm = parameters, comm
        self._reduce, self._gather, self._reduces = reduce, gather, reduces
        self._request: Request | None = None
        length = -(-sum(each.numel() for each in parameters) // comm.size)
        self._weights = parameters[0].data.new_zeros(comm.size * length)
        for view, parameter in zip(views(self._weights, parameters), parameters, strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self.part = self._weights[comm.rank * length :][:length]
        self._missing, self._reduced = {*parameters}, False

    def has_gradient(self, parameter: nn.Parameter) -> None:
        """Reduce the gradient of the block if that of each parameter is ready."""
        self._missing.discard(parameter)
        if not self._missing:
            self._reduce_gradients()

    def missing(self) -> nn.Parameter | None:
        """A parameter without a gradient after a backward pass; None: the block's has been reduced."""
        complete, self._reduced = self._reduced and len(self._missing) == len(self._parameters), False
        return None if complete else next(each for each in self._parameters if each in self._missing)

    def _reduce_gradients(self) -> None:
        """Start to reduce the gradient."""
        gradient = torch.zeros_like(self._weights)
        own = views(gradient, self._parameters)
        for view, parameter in zip(own, self._parameters, strict=True):
            view.copy_(cast("Tensor", parameter.grad))
            parameter.grad = None
        self._request = self._reduce(gradient, self._comm)
        self._missing, self._reduced = {*self._parameters}, True
        self._reduces(self)

    def free_gradient(self) -> None:
        """Add the mean gradient of this rank's part to those of the step, and free all others."""
        assert self._request is not None  # noqa: S101  (for the type checker)
        reduced, self._request = self._request.wait(), None
        self.part.grad = reduced if self.part.grad is None else self.part.grad + reduced

    def gather_weights(self) -> Request:
        """Start to gather the parts that the ranks have updated."""
        return self._gather(self.part.detach(), self._comm)

    @torch.no_grad()
    def set_weights(self, parts: Tensor) -> None:
        """Replace the weights. parts: shape (ranks, n / ranks)."""
        self._weights.copy_(parts.flatten())
