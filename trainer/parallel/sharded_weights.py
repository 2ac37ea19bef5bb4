"""ZeRO-3 replica: of each tensor the rows of this rank, and the weights of a block while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

Gather = Callable[[Tensor, Communicator], Request]
Reduce = Callable[[Tensor, Communicator], Tensor]


class ShardedWeightsReplica(Replica):
    """A replica whose rank keeps its rows of each tensor.

    The all-gather and the reduce-scatter are in trainer/strategies/zero3.py.
    """

    def __init__(
        self,
        model: nn.Sequential,
        task: Task,
        comm: Communicator,
        shards: Communicator,
        gather: Gather,
        reduce: Reduce,
        reshard: bool,
    ) -> None:
        """
        Args:
            shards: the ranks over which a copy of the model is sharded.
            reshard: free the weights of a block between its forward and its backward pass.
        """
        super().__init__(model, task, comm.clock)
        self._comm, self._reshard = shards, reshard
        unused = {model.get_parameter(name) for name in task.spec.model.unused}
        self._blocks: dict[int, Block] = {}  # by number in the chain
        self._block_of: dict[nn.Parameter, Block] = {}
        rows: dict[nn.Parameter, Tensor] = {}
        for number, module in enumerate(model):
            if parameters := [each for each in trained_parameters(module) if each not in unused]:
                block = self._blocks[number] = Block(parameters, shards, gather, reduce)
                self._block_of.update(dict.fromkeys(parameters, block))
                rows.update(zip(parameters, block.own, strict=True))
        for group in self._optimizer.param_groups:
            group["params"] = [rows.get(each, each) for each in group["params"]]
        self._passed: Block | None = None  # in the forward pass
        self.listen(self._on_moment, blocks=True)

    def _on_moment(self, moment: Moment) -> None:
        if moment.event == "gradient":
            parameter = self._parameters[moment.number]
            if own := self._block_of.get(parameter):
                own.has_gradient(parameter)
            return
        if self._passed and self._reshard:
            self._passed.free()
        block, forward = self._blocks.get(moment.number), moment.event == "forward"
        self._passed = block if forward else None
        if block:
            block.gather()
            if following := self._after(moment.number, 1 if forward else -1):
                following.start_gather()

    def _after(self, number: int, steps: int) -> Block | None:
        """The block that follows another one in a pass."""
        numbers = [*self._blocks]
        at = numbers.index(number) + steps
        return self._blocks[numbers[at]] if 0 <= at < len(numbers) else None

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        super().backward(batch, weight)
        for block in self._blocks.values():
            if (missing := block.missing()) is not None:
                name = next(name for name, each in self.model.named_parameters() if each is missing)
                raise RuntimeError(
                    f"{name} gets a gradient in some steps only, and zero3 shards whole blocks; choose "
                    "another strategy"
                )

    def squared_gradient_norm(self) -> Tensor:
        return sum_over_ranks(squares(self._state_tensors()["gradient"]), self._comm)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Have all weights in a block of code. All ranks enter it."""
        absent = [block for block in self._blocks.values() if not block.is_whole]
        for block in absent:
            block.gather()
        yield
        for block in absent:
            block.free()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model in evaluation mode, with all weights: ranks may have unequally many batches."""
        with self._whole(), super().evaluating():
            yield

    def weights(self) -> Tensor:
        """The full weights, see `Replica.weights`. All ranks call it."""
        with self._whole():
            whole: Tensor = super().weights()
        return whole

    def state(self) -> dict[str, Any]:
        """See `Replica.state`. Of a sharded tensor it has this rank's rows."""
        return super().state() | {"model": self._kept()}

    def restore(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for own, value in zip(self._kept(), state["model"], strict=True):
                own.copy_(value)
        with self._whole():
            super().restore({**state, "model": self.model.state_dict()})

    def _kept(self) -> list[Tensor]:
        """What this rank has between two steps: its rows, parameters that are not sharded, and buffers."""
        rest = [each for each in self.model.parameters() if each not in self._block_of]
        return [*(block.rows for block in self._blocks.values()), *rest, *self.model.buffers()]

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        held = super()._state_tensors()
        own = [each.grad for block in self._blocks.values() for each in block.own if each.grad is not None]
        return {**held, "weights": self._kept(), "gradient": held["gradient"] + own}


class Block:
    """The parameters of a block, of which this rank keeps rows.

    Attributes:
        rows: those of all tensors, one after the other, each padded with zeros, shape (n / ranks,).
        own: the rows of each tensor without padding, views of `rows`, flat.
        is_whole: whether the parameters have their values.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], comm: Communicator, gather: Gather, reduce: Reduce
    ) -> None:
        self._parameters, self._comm, self._gather, self._reduce = parameters, comm, gather, reduce
        rows = [-(-len(each) // comm.size) for each in parameters]  # of a rank, with padding
        row = [each[0].numel() for each in parameters]
        self._lengths = [count * length for count, length in zip(rows, row, strict=True)]
        # Graphs refer to the memory of the parameters, so it is freed and filled again, and not replaced.
        self._flat = self._joined([each.data for each in parameters])
        self._bytes, self.is_whole = self._flat.nbytes, True
        for view, parameter in zip(self._views(self._flat), parameters, strict=True):
            parameter.data = view
        self.rows = self._by_rank(self._flat)[comm.rank].clone()
        self.own = [
            padded[: max(len(each) - comm.rank * count, 0) * length]
            for each, padded, count, length in zip(
                parameters, self.rows.split(self._lengths), rows, row, strict=True
            )
        ]
        self._request: Request | None = None
        self._missing, self._reduced = {*parameters}, False
        self.free()

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        """The values of each parameter in a flat tensor."""
        return views(flat, self._parameters, [self._comm.size * each for each in self._lengths])

    def _joined(self, values: Sequence[Tensor]) -> Tensor:
        """Values of the parameters as one flat tensor, in which each is padded."""
        flat = values[0].new_zeros(self._comm.size * sum(self._lengths))
        for view, value in zip(self._views(flat), values, strict=True):
            view.copy_(value)
        return flat

    def _by_rank(self, flat: Tensor) -> Tensor:
        """The rows of each rank in a flat tensor, shape (ranks, n / ranks)."""
        size = self._comm.size
        tensors = flat.split([size * each for each in self._lengths])
        return torch.cat([each.view(size, -1) for each in tensors], dim=1)

    def start_gather(self) -> None:
        """Start to gather the weights, unless that is done."""
        if not self.is_whole and self._request is None:
            self._request = self._gather(self.rows, self._comm)

    def gather(self) -> None:
        """Fill the parameters with the rows of all ranks."""
        self.start_gather()
        if self._request:
            of_ranks, self._request = self._request.wait().split(self._lengths, dim=1), None
            self._flat.untyped_storage().resize_(self._bytes)
            self._flat.copy_(torch.cat([each.flatten() for each in of_ranks]))
            self.is_whole = True

    def free(self) -> None:
        """Free the memory of the parameters."""
        self._flat.untyped_storage().resize_(0)
        self.is_whole = False

    def has_gradient(self, parameter: nn.Parameter) -> None:
        """Reduce the gradient of the block, and free the block, if that of each parameter is ready."""
        self._missing.discard(parameter)
        if self._missing:
            return
        gradient = self._joined([cast("Tensor", each.grad) for each in self._parameters])
        for each in self._parameters:
            each.grad = None
        self.free()
        reduced = self._reduce(self._by_rank(gradient).flatten(), self._comm).split(self._lengths)
        for own, mean in zip(self.own, reduced, strict=True):
            mean = mean[: len(own)]
            own.grad = mean if own.grad is None else own.grad + mean
        self._missing, self._reduced = {*self._parameters}, True

    def missing(self) -> nn.Parameter | None:
        """A parameter without a gradient after a backward pass; None: the block's has been reduced."""
        complete, self._reduced = self._reduced and len(self._missing) == len(self._parameters), False
        return None if complete else next(each for each in self._parameters if each in self._missing)
