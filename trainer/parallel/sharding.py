"""Sharded data parallelism: ZeRO and FSDP replicas by torch, with time and traffic recorded."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.comm.base import Communicator
from trainer.comm.errors import communication_errors
from trainer.comm.nonblocking import Request, wait_all
from trainer.core.trace import Kind
from trainer.training.replica import Replica, squares, sum_over_ranks
from trainer.training.task import Task


class ShardedReplica(Replica):
    """FSDP: each rank keeps its rows of every tensor; `fully_shard` all-gathers a block before its use."""

    def __init__(self, model: nn.Sequential, task: Task, comm: Communicator, *, reshard: bool) -> None:
        """reshard: free the other ranks' rows between the forward and the backward pass."""
        channels_last = task.spec.model.channels_last
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                # "FSDP does not support non-contiguous parameters yet"
                if parameter.dim() == 4 and (channels_last or not parameter.is_contiguous()):
                    parameter.data = parameter.data.contiguous()
                    module.register_forward_hook(_to_channels_last)
        mesh = init_device_mesh("cpu", (comm.size,))
        blocks = [block for block in model.children() if next(block.parameters(), None) is not None]
        for block in blocks:
            sharded: Any = fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            sharded.set_custom_all_gather(AllGather(comm))
            sharded.set_custom_reduce_scatter(ReduceScatter(comm))
        self._root: Any = fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        self._reshard, self._comm = reshard, comm
        super().__init__(model, task, comm.clock)

    def squared_gradient_norm(self) -> Tensor:
        return sum_over_ranks(squares(self._state_tensors()["gradient"]), self._comm)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model in evaluation mode, and gather the weights. All ranks enter.

        The weights stay gathered, because ranks may have different numbers of forward passes, or none.
        """
        self._root.set_reshard_after_forward(False)
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        with super().evaluating():
            yield
        # `reshard()` is not enough: FSDP also records these forward passes and would prefetch more blocks
        # in the next step.
        self._root.reset_iter_state()
        self._root.set_reshard_after_forward(self._reshard)

    def weights(self) -> Tensor:
        """The full weights, see `Replica.weights`. All ranks call it."""
        full = [each.full_tensor() if isinstance(each, DTensor) else each for each in self._state]
        return torch.cat([each.detach().reshape(-1) for each in full])

    def state(self) -> dict[str, Any]:
        """See `Replica.state`. Of a sharded tensor it has this rank's rows."""
        state = super().state()
        optimizer = state["optimizer"]
        of_parameters = {number: _rows_of(held) for number, held in optimizer["state"].items()}
        return state | {
            "model": _rows_of(state["model"]),
            "optimizer": optimizer | {"state": of_parameters},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        own, optimizer = self.model.state_dict(), state["optimizer"]
        weights = {name: _sharded(rows, own[name]) for name, rows in state["model"].items()}
        of_parameters = {
            number: {name: _sharded(rows, self._parameters[number]) for name, rows in held.items()}
            for number, held in optimizer["state"].items()
        }
        super().restore({**state, "model": weights, "optimizer": optimizer | {"state": of_parameters}})

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        held = super()._state_tensors()
        return {what: [*map(_rows, tensors)] for what, tensors in held.items()}


def _rows(value: Any) -> Any:
    """This rank's rows of a sharded tensor; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


def _rows_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rows(value) for name, value in values.items()}


def _sharded(value: Any, like: Tensor) -> Any:
    """The inverse of `_rows`, sharded as `like`. Counters of steps are not sharded."""
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim()):
        return value
    if value.shape != like.to_local().shape:
        shapes = f"{list(value.shape)}; a rank has rows of shape {list(like.to_local().shape)}"
        raise ValueError(f"a tensor has the shape {shapes}")
    return DTensor.from_local(
        value, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )


class ShardedOptimizerReplica(Replica):
    """ZeRO-1: a full model; each tensor's owner rank updates it and broadcasts the result."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        comm: Communicator,
        broadcast: Callable[[Tensor, int, Communicator], Request],
    ) -> None:
        super().__init__(model, task, comm.clock)
        self._comm, self._broadcast = comm, broadcast
        self._owned = owners(self._optimizer, {id(each) for each in self._parameters}, comm.size)
        own = {id(each) for each in self._owned[comm.rank]}
        for group in self._optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) in own]

    def step(self) -> None:
        """Update this rank's own tensors, broadcast them and receive those of the other ranks."""
        super().step()
        wait_all(
            self._broadcast(_flat(each), root, self._comm)
            for root, tensors in enumerate(self._owned)
            for each in tensors
        )


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a tensor as they are in memory, shape (n,)."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def owners(optimizer: Optimizer, trained: Container[int], ranks: int) -> list[list[nn.Parameter]]:
    """The tensors that each rank updates: the largest first, each to the rank with the least so far.

    trained: the identities of the parameters that are trained.
    """
    owned: list[list[nn.Parameter]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for group in optimizer.param_groups:
        parameters = [each for each in group["params"] if id(each) in trained]
        for parameter in sorted(parameters, key=torch.numel, reverse=True):
            rank = sizes.index(min(sizes))
            owned[rank].append(parameter)
            sizes[rank] += parameter.numel()
    return owned


class Collective:
    """Replaces a collective of `fully_shard`. It is synchronous."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def _recorded(self, doing: str, shard: Tensor, kind: Kind, size: int) -> Iterator[None]:
        """size: the bytes of `kind`, see Kind."""
        comm = self._comm
        with comm.clock.phase("communicate") as span, communication_errors(doing):
            yield
        if span.counted:
            comm.traffic.bytes_sent += shard.nbytes * (comm.size - 1)
            comm.traffic.collectives.append((span.entered, span.left))
            comm.trace(kind, span, size)


class AllGather(Collective):
    """All-gathers the weights of a block."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool) -> None:
        size = input_tensor.nbytes
        with self._recorded("all-gather of weights", input_tensor, Kind.ALL_GATHER, size):
            dist.all_gather_single(output_tensor, input_tensor, group=group)


class ReduceScatter(Collective):
    """Reduce-scatters the gradient of a block: each rank gets its rows of the mean."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any) -> None:
        size = input_tensor.nbytes
        with self._recorded("reduce-scatter of gradients", output_tensor, Kind.REDUCE_SCATTER, size):
            dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)


def _to_channels_last(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Forward hook: convert a convolution's output to channels_last, as with channels_last weights.

    torch does so itself except for a batch of one sample. Dropout draws in memory order.
    """
    return output.contiguous(memory_format=torch.channels_last)
