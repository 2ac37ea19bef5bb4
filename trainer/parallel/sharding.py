"""Sharded data parallelism: ZeRO and FSDP replicas by torch, which exchange over our communicator."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Work
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from trainer.comm.base import Communicator
from trainer.comm.nonblocking import Request, wait_all
from trainer.training.replica import Replica, squares, sum_over_ranks
from trainer.training.task import Task


class ShardedReplica(Replica):
    """FSDP: each rank keeps its rows of every tensor; `fully_shard` all-gathers a block before its use.

    It starts to gather a block when the one before it begins to compute.
    """

    def __init__(
        self,
        model: nn.Sequential,
        task: Task,
        comm: Communicator,
        shards: Communicator,
        copies: Communicator | None,
        reshard: bool,
    ) -> None:
        """
        Args:
            shards: the ranks over which a copy of the model is sharded.
            copies: those with the same rows of each copy; None: there is one copy.
            reshard: free the other ranks' rows between the forward and the backward pass.
        """
        channels_last = task.spec.model.channels_last
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                # "FSDP does not support non-contiguous parameters yet"
                if parameter.dim() == 4 and (channels_last or not parameter.is_contiguous()):
                    parameter.data = parameter.data.contiguous()
                    module.register_forward_hook(_to_channels_last)
        mesh = Ranks(shards)
        blocks: list[Any] = [each for each in model.children() if [*each.parameters()]]
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
            block.set_custom_all_gather(AllGather(shards))
            block.set_custom_reduce_scatter(ReduceScatter(shards))
            if copies:
                block.set_all_reduce_hook(partial(copies.all_reduce, op="mean"))
        for block, following in pairwise(blocks):  # backward, torch does so by itself
            block.set_modules_to_forward_prefetch([following])
        self._root: Any = fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        self._reshard, self._comm = reshard, shards
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
        rows = [_padded_rows(each) for each in self._parameters]
        gathered = self._comm.all_gather(torch.cat(rows)).split([*map(len, rows)], dim=1)
        pairs = zip(self._parameters, gathered, strict=True)
        full = [of_ranks.flatten()[: parameter.numel()] for parameter, of_ranks in pairs]
        return torch.cat([*full, *(buffer.flatten() for buffer in self._statistics)])

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


def _padded_rows(tensor: Any) -> Tensor:
    """This rank's rows of a sharded tensor, shape (n,), with zeros up to as many as the first rank has."""
    rows = tensor.to_local().detach().flatten()
    most = -(-tensor.shape[0] // tensor.device_mesh.size()) * prod(tensor.shape[1:])
    return pad(rows, (0, most - len(rows)))


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


class Ranks(DeviceMesh):
    """The ranks of a communicator, by which torch divides rows. Without a backend, it cannot gather any."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__("cpu", torch.arange(comm.size), _init_backend=False, _rank=comm.rank)
        self._numbers = ProcessGroup(comm.rank, comm.size)  # type: ignore[call-arg]

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        return self._numbers


class Collective:
    """Replaces a collective of `fully_shard`."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(Collective):
    """Starts to all-gather the weights of a block. torch waits for what it returns before it uses them."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool) -> Work:
        return Gathered(self._comm.iall_gather(input_tensor), output_tensor)


class Gathered(Work):
    """Weights on their way. torch waits only for instances of Work, and uses others at once."""

    def __init__(self, request: Request, output: Tensor) -> None:
        """output: takes the memory of the weights."""
        super().__init__()
        self._request, self._output = request, output

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._output.set_(self._request.wait().flatten())
        return True


class ReduceScatter(Collective):
    """Reduce-scatters the gradient of a block: each rank gets its rows of the mean.

    It blocks: torch uses the rows at once.
    """

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any) -> None:
        torch.div(self._comm.reduce_scatter(input_tensor), self._comm.size, out=output_tensor)


def _to_channels_last(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Forward hook: convert a convolution's output to channels_last, as with channels_last weights.

    torch does so itself except for a batch of one sample. Dropout draws in memory order.
    """
    return output.contiguous(memory_format=torch.channels_last)
